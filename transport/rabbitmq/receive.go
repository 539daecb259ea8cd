package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Drainer  = (*receiver)(nil)
	_ transport.Listener = (*receiver)(nil)
)

// phase is the state of a receiver. It only grows.
type phase int

const (
	phaseOpen     phase = iota
	phaseDraining       // the broker is to deliver nothing more
	phaseClosed         // by Close: deliveries can still be settled
	phaseEnded          // by Close of the conn: they cannot
)

// receiver receives from one queue, over one channel after the other.
type receiver struct {
	of      *receivers
	queue   string
	ready   chan struct{} // wakes Receive
	adjust  chan struct{} // wakes run
	timeout timeout       // of unsettled deliveries; used by run alone

	completesFirst bool // handlers get only what was acknowledged

	mu        sync.Mutex // guards the fields below
	window    int        // -1 before it is set
	receiving int        // calls of Receive that are running
	channel   *channel   // nil while there is none
	err       error      // why there is none
	phase     phase
}

// receivers are the receivers of a conn.
type receivers struct {
	*core
	lifter      *lifter
	redelivered redelivered

	mu   sync.Mutex // guards open
	open map[*receiver]struct{}
}

// finish ends the receivers, and returns the time until the broker has applied their settlements.
func (rs *receivers) finish() (wait time.Duration) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.open {
		if ch := r.enter(phaseEnded); ch != nil {
			ch.finish()
			wait = max(wait, ch.unapplied())
		}
	}
	return wait
}

// OpenReceiver returns a receiver of a queue that exists. Messages are delivered once the window is
// set.
func (rs *receivers) OpenReceiver(
	ctx context.Context, opts transport.ReceiverOptions,
) (transport.Receiver, error) {
	if _, err := rs.lookAt(ctx, opts.Queue); err != nil {
		return nil, err
	}
	rs.lifter.checkLimit(opts.Queue)
	r := &receiver{
		of: rs, queue: opts.Queue, completesFirst: opts.CompletesFirst, window: -1,
		ready: make(chan struct{}, 1), adjust: make(chan struct{}, 1),
	}
	if rs.version.atLeast(release43) {
		r.timeout = timeoutOfMessage // until the queue turns out to be a classic one
	}
	first := make(chan error, 1)
	rs.mu.Lock()
	rs.open[r] = struct{}{}
	rs.mu.Unlock()
	if !rs.tasks.Go(func() { r.run(first) }) {
		r.forget()
		return nil, transport.ErrClosed
	}
	select {
	case err := <-first:
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		return r, nil
	case <-ctx.Done():
		_ = r.Close() // never fails
		return nil, fmt.Errorf("rabbitmq: receive from %q: %w", opts.Queue, context.Cause(ctx))
	}
}

// run opens a channel, serves it until it ends, and opens the next. It sends the result of the
// first attempt to first.
func (r *receiver) run(first chan<- error) {
	defer r.forget()
	pace := newPacer()
	for !r.stopped() {
		since, timeout := time.Now(), r.timeout
		ch, err := r.open(r.of.ctx)
		select {
		case first <- err:
		default:
		}
		if err == nil {
			r.use(ch, nil)
			err = ch.serve(r.of.ctx)
			ch.end(transport.ErrLeaseLost)
		}
		if r.timeout != timeout {
			continue // nothing was received: the consumer had arguments that this queue refuses
		}
		r.use(nil, err)
		pace.lasted(time.Since(since))
		if pace.wait(r.of.ctx) != nil {
			return
		}
	}
}

// open opens a channel when both connections are open: handlers that cannot send would only use
// attempts up.
func (r *receiver) open(ctx context.Context) (*channel, error) {
	var again repetition
	for !r.stopped() {
		in, changedIn, err := r.of.receiving.now()
		_, changedOut, errOut := r.of.publishing.now()
		if err == nil && errOut == nil {
			ch, err := openChannel(in.brokerConn, r)
			if isMomentary(err, in.brokerConn) && again.again(ctx) {
				continue
			}
			return ch, err
		}
		r.use(nil, cmp.Or(err, errOut))
		select {
		case <-changedIn:
		case <-changedOut:
		case <-r.adjust:
		case <-ctx.Done():
			return nil, transport.ErrClosed
		}
	}
	return nil, transport.ErrClosed
}

// use records the channel, or why there is none.
func (r *receiver) use(ch *channel, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.channel, r.err = ch, err
	signal(r.ready)
}

func (r *receiver) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase >= phaseClosed
}

func (r *receiver) forget() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	delete(r.of.open, r)
}

// Listening implements [transport.Listener]: the broker has confirmed a consumer on the channel of
// now, and messages can be sent.
func (r *receiver) Listening() bool {
	r.mu.Lock()
	ch := r.channel
	r.mu.Unlock()
	_, _, err := r.of.publishing.now()
	return ch != nil && err == nil && ch.consumed.Load()
}

// Receive returns the prefetched messages, or waits for the next one.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.count(1)
	defer r.count(-1)
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		ds, pausing, err := r.take(max(1, limit))
		if pausing != nil {
			pausing.awaitPause()
		}
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
		}
	}
}

// count adds n to the calls of Receive that are running.
func (r *receiver) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.receiving += n
	if r.window == 1 {
		signal(r.adjust)
	}
}

// take returns prefetched messages while messages can be sent: otherwise handlers would only use
// attempts up. With a window of 1 it also returns the channel, whose prefetch has to pause.
func (r *receiver) take(limit int) (ds []transport.Delivery, pausing *channel, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window < 0 {
		r.window = limit
		signal(r.adjust)
	}
	switch {
	case r.phase >= phaseClosed:
		signal(r.ready) // for other calls that wait
		return nil, nil, transport.ErrClosed
	case r.channel == nil:
		return nil, nil, r.err
	}
	if _, _, err := r.of.publishing.now(); err != nil {
		return nil, nil, fmt.Errorf("rabbitmq: receive from %q: paused because nothing can be sent: %w", r.queue, err)
	}
	ds, more, isPausing := r.channel.take(limit, r.window)
	if more {
		signal(r.ready)
	}
	if isPausing {
		pausing = r.channel
	}
	return ds, pausing, nil
}

// Window sets how many deliveries may be unsettled; 0 pauses. The broker gets the new number soon
// after.
func (r *receiver) Window(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window = max(0, n)
	signal(r.adjust)
	signal(r.ready)
}

// limit returns the window and the phase. With a window of 1 the next message is asked for when
// Receive is called, and not when the last one is settled: released without a handler, it would
// have used up an attempt.
func (r *receiver) limit() (int, phase) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window == 1 && r.receiving == 0 {
		return 0, r.phase
	}
	return max(0, r.window), r.phase
}

// Drain implements [transport.Drainer]: before RabbitMQ 4.3, a released message has a higher
// delivery count.
func (r *receiver) Drain(ctx context.Context, limit int) []transport.Delivery {
	ch := r.enter(phaseDraining)
	if ch == nil {
		return nil
	}
	ch.awaitIdle(ctx)
	ds, _, _ := ch.take(limit, math.MaxInt)
	return ds
}

// Close releases the prefetched messages. The channel stays open until the deliveries that Receive
// has returned are settled.
func (r *receiver) Close() error {
	r.enter(phaseClosed)
	return nil
}

// enter begins a phase, unless it is over. It returns the channel, if any.
func (r *receiver) enter(next phase) *channel {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = max(r.phase, next)
	signal(r.ready)
	signal(r.adjust)
	return r.channel
}

// signal wakes the goroutine that waits for c, a channel with room for one value, now or when it
// waits next.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
