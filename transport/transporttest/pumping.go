package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// pumping is the endpoint's receive loop on a queue.
type pumping struct {
	*pump.Pump
	end  context.CancelFunc // ends receiving
	over chan struct{}      // closed when the loop has ended
}

// handler handles a delivery and returns how to settle it.
type handler func(ctx context.Context, d transport.Delivery) func(context.Context) error

var errRuleOver = errors.New("the rule is over")

// pump runs the receive loop until stop, or the end of the rule. stopTimeout bounds the time for
// handlers after it; less than 0: unlimited.
func (t *test) pump(c transport.Conn, queue string, concurrency int, stopTimeout time.Duration, handle handler) *pumping {
	t.Helper()
	r, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: queue})
	t.must("OpenReceiver", err)
	settling := t.ctx()
	// A rule that fails may leave handlers waiting.
	giveUp, cancel := context.WithCancel(context.Background())
	p := &pumping{over: make(chan struct{})}
	p.Pump = pump.New(pump.Config{
		Receiver:    r,
		Limits:      c.Limits(),
		Queue:       queue,
		Concurrency: concurrency,
		StopTimeout: stopTimeout,
		Handle: func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer context.AfterFunc(giveUp, func() { cancel(errRuleOver) })()
			settle := handle(ctx, d)
			slot.Free()
			if err := settle(settling); err != nil {
				t.Errorf("settle %q: %v", d.Message().ID, err)
			}
		},
	})
	ctx, end := context.WithCancel(t.ctx())
	p.end = end
	go func() {
		defer close(p.over)
		p.Run(ctx)
		t.ok("close the receiver", r.Close())
	}()
	t.Cleanup(func() {
		end()
		cancel()
		<-p.over
	})
	return p
}

// stop ends receiving and waits for the handlers.
func (t *test) stop(p *pumping) {
	t.Helper()
	p.end()
	await(t, "the pump stops", p.over)
}

// crowd counts handlers, which wait to be released, in one receive loop after the other.
type crowd struct {
	t *test
	*pumping
	gate chan struct{} // a token releases a handler

	mu       sync.Mutex // guards the fields below
	in, most int
	done     int
	of       map[string]int // deliveries of each message
	attempts map[string]int // the last attempt of each
}

func (t *test) crowd() *crowd {
	return &crowd{t: t, gate: make(chan struct{}), of: map[string]int{}, attempts: map[string]int{}}
}

// begin starts the receive loop on a queue.
func (w *crowd) begin(c transport.Conn, queue string, concurrency int) {
	w.t.Helper()
	w.pumping = w.t.pump(c, queue, concurrency, -1, w.handle)
}

func (w *crowd) handle(ctx context.Context, d transport.Delivery) func(context.Context) error {
	w.mu.Lock()
	w.in++
	w.most = max(w.most, w.in)
	w.of[d.Message().ID]++
	w.attempts[d.Message().ID] = d.Attempt().N
	w.mu.Unlock()
	select {
	case <-w.gate:
	case <-ctx.Done():
	}
	w.mu.Lock()
	w.in--
	w.done++
	w.mu.Unlock()
	return d.Complete
}

func (w *crowd) now() (in, most, done int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.in, w.most, w.done
}

// reaches waits until so many messages are handled at once.
func (w *crowd) reaches(want int) {
	w.t.Helper()
	w.t.eventually("the concurrency is reached", func() bool { in, _, _ := w.now(); return in >= want })
}

// let releases a handler.
func (w *crowd) let() {
	w.t.Helper()
	select {
	case w.gate <- struct{}{}:
	case <-w.t.ctx().Done():
		w.t.Fatalf("no message is handled within %v", timeout)
	}
}

// open releases all handlers.
func (w *crowd) open() { close(w.gate) }

// forget resets the maximum.
func (w *crowd) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = w.in
}

// handled waits until so many messages were handled in all, and stops.
func (w *crowd) handled(total int) {
	w.t.Helper()
	w.t.eventually("all are handled", func() bool { _, _, done := w.now(); return done >= total })
	w.t.stop(w.pumping)
}

// handles runs the receive loop until so many messages were handled in all.
func (w *crowd) handles(c transport.Conn, queue string, concurrency, total int) {
	w.t.Helper()
	w.begin(c, queue, concurrency)
	w.handled(total)
}

// finish releases all handlers, and checks that each message was handled once, and no more than
// most at once.
func (w *crowd) finish(c transport.Conn, most int, want ...string) {
	w.t.Helper()
	w.open()
	w.handled(len(want))
	if _, got, _ := w.now(); got > most {
		w.t.Errorf("%d were handled at once, want at most %d", got, most)
	}
	w.once(c, want)
}

// once checks that each message was handled exactly once, at attempt 1 unless the driver may have
// prefetched it and returned it to the queue, which counts if releases are not free.
func (w *crowd) once(c transport.Conn, want []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	l := c.Limits()
	attempts := !l.Prefetch || l.FreeRelease
	for _, id := range want {
		switch {
		case w.of[id] != 1:
			w.t.Errorf("%q was handled %d times", id, w.of[id])
		case attempts && w.attempts[id] != 1:
			w.t.Errorf("%q was handled in attempt %d", id, w.attempts[id])
		}
	}
}
