package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// receiver takes messages from one queue, through one session after the other.
type receiver struct {
	conn  *conn
	queue string
	wake  chan struct{} // something for Receive to look at
	poke  chan struct{} // something for run to look at
	hold  hold          // run's own
	// completesFirst: only what was acknowledged is handled.
	completesFirst bool

	mu      sync.Mutex // guards what follows
	window  int        // -1 before it is set
	asking  int        // calls of Receive that are running
	session *session   // nil while there is none
	err     error      // why there is none
	closed  bool       // by Close, which lets deliveries be settled
	done    bool       // by Close of the conn, which does not

	draining bool // no more is to come
}

// OpenReceiver makes sure of the queue. Messages come once the window is set.
func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	if _, err := c.lookAt(ctx, opts.Queue); err != nil {
		return nil, err
	}
	r := &receiver{
		conn:   c,
		queue:  opts.Queue,
		wake:   make(chan struct{}, 1),
		poke:   make(chan struct{}, 1),
		hold:   c.version.holds(),
		window: -1,

		completesFirst: opts.CompletesFirst,
	}
	first := make(chan error, 1)
	c.mu.Lock()
	c.receivers[r] = struct{}{}
	c.mu.Unlock()
	if !c.tasks.start(func() { r.run(first) }) {
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

// run opens a session, serves it until it ends, and opens the next. It reports how the
// first attempt went.
func (r *receiver) run(first chan<- error) {
	defer r.forget()
	pace := newPacer()
	for !r.stopped() {
		since, hold := time.Now(), r.hold
		s, err := r.open(r.conn.ctx)
		select {
		case first <- err:
		default:
		}
		if err == nil {
			r.begin(s)
			err = s.serve(r.conn.ctx, r)
			s.end()
		}
		if r.hold != hold {
			continue // nothing was received: the consumer had asked for what this queue has not
		}
		r.lose(err)
		pace.lasted(time.Since(since))
		if pace.wait(r.conn.ctx) != nil {
			return
		}
	}
}

// open starts a session when both connections are up: to receive what cannot be
// answered would only use up attempts.
func (r *receiver) open(ctx context.Context) (*session, error) {
	for !r.stopped() {
		in, changedIn, err := r.conn.receiving.now()
		_, changedOut, errOut := r.conn.publishing.now()
		if err == nil && errOut == nil {
			return openSession(in.conn, r)
		}
		r.lose(cmp.Or(err, errOut))
		select {
		case <-changedIn:
		case <-changedOut:
		case <-r.poke:
		case <-ctx.Done():
			return nil, transport.ErrClosed
		}
	}
	return nil, transport.ErrClosed
}

func (r *receiver) begin(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session, r.err = s, nil
	signal(r.wake)
}

// lose notes why there is no session.
func (r *receiver) lose(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session, r.err = nil, err
	signal(r.wake)
}

func (r *receiver) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.done
}

func (r *receiver) forget() {
	r.conn.mu.Lock()
	defer r.conn.mu.Unlock()
	delete(r.conn.receivers, r)
}

// Receive takes what is there, or waits for the next message.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.ask(1)
	defer r.ask(-1)
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		ds, alone, err := r.take(max(1, limit))
		if alone != nil {
			alone.prefetch.awaitPause()
			signal(r.poke)
		}
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// ask notes that a Receive begins or ends.
func (r *receiver) ask(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking += n
	if r.window == 1 {
		signal(r.poke)
	}
}

// take gives what is there, while messages can be sent: handlers would only use their attempts up. With a window of 1 it gives the session too, which has to come to a stand.
func (r *receiver) take(limit int) (ds []transport.Delivery, alone *session, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.window < 0 {
		r.window = limit
		signal(r.poke)
	}
	switch {
	case r.closed || r.done:
		signal(r.wake) // for others who wait
		return nil, nil, transport.ErrClosed
	case r.session == nil:
		return nil, nil, r.err
	}
	if _, _, err := r.conn.publishing.now(); err != nil {
		return nil, nil, fmt.Errorf("rabbitmq: receive from %q: paused because nothing can be sent: %w", r.queue, err)
	}
	ds, more := r.session.take(limit, r.window)
	if more {
		signal(r.wake)
	}
	if r.window == 1 && len(ds) > 0 && r.session.prefetch.pause() {
		alone = r.session
		signal(r.poke)
	}
	return ds, alone, nil
}

// Window sets how many deliveries may be out; 0 pauses. The broker learns of it soon.
func (r *receiver) Window(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window = max(0, n)
	signal(r.poke)
	signal(r.wake)
}

// limit is the window, 0 when nothing more is to come. With a window of 1 the next message comes when
// it is asked for, and not as soon as the last is settled: given back unseen, it would have used up an attempt.
func (r *receiver) limit() (window int, last, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || r.draining:
		return 0, true, r.closed
	case r.window == 1 && r.asking == 0, r.session != nil && r.session.prefetch.paused():
		return 0, false, false
	}
	return max(0, r.window), false, false
}

// Close gives back what Receive has not returned. The channel stays open until the
// deliveries that it did return are settled.
func (r *receiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	signal(r.wake)
	signal(r.poke)
	return nil
}

// finish ends everything for a conn that closes: acknowledgements that wait for
// company leave now, before the connection is closed.
func (r *receiver) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	if r.session != nil {
		r.session.finish()
	}
	signal(r.wake)
	signal(r.poke)
}

// signal leaves word in a channel with room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
