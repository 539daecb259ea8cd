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

// pump runs the receive loop until stop, or the end of the rule. stopTimeout bounds the time for handlers after it;
// less than 0: unlimited.
func (t *test) pump(c transport.Conn, queue string, concurrency int, stopTimeout time.Duration, handle handler) *pumping {
	t.Helper()
	r, err := c.OpenReceiver(t.ctx(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatalf("OpenReceiver: %v", err)
	}
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
		if err := p.Run(ctx); err != nil {
			t.Errorf("the pump: %v", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("close the receiver: %v", err)
		}
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

// crowd counts handlers, which wait to be released.
type crowd struct {
	gate chan struct{} // a token releases a handler

	mu       sync.Mutex // guards the fields below
	in, most int
	done     int
	of       map[string]int // deliveries of each message
	attempts map[string]int // the last attempt of each
}

func newCrowd() *crowd {
	return &crowd{gate: make(chan struct{}), of: map[string]int{}, attempts: map[string]int{}}
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

// let releases a handler.
func (w *crowd) let(t *test) {
	t.Helper()
	select {
	case w.gate <- struct{}{}:
	case <-t.ctx().Done():
		t.Fatalf("no message is handled within %v", timeout)
	}
}

func (w *crowd) now() (in, most, done int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.in, w.most, w.done
}

// forget resets the maximum.
func (w *crowd) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = w.in
}

// open releases all handlers.
func (w *crowd) open() { close(w.gate) }

// once checks that each message was handled exactly once, at attempt 1 unless the driver may have prefetched it and
// returned it to the queue, which counts if releases are not free.
func (w *crowd) once(t *test, c transport.Conn, want []string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	l := c.Limits()
	attempts := !l.Prefetch || l.FreeRelease
	for _, id := range want {
		switch {
		case w.of[id] != 1:
			t.Errorf("%q was handled %d times", id, w.of[id])
		case attempts && w.attempts[id] != 1:
			t.Errorf("%q was handled in attempt %d", id, w.attempts[id])
		}
	}
}
