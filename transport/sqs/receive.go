package sqs

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)
)

// receiver receives from one queue. It prefetches nothing: each poll requests as many messages as the caller.
type receiver struct {
	inFlight *inFlight
	ask      asking        // without the limit
	ended    chan struct{} // closed by Close

	mu     sync.Mutex // guards closed, and Add against Wait
	closed bool
	polls  sync.WaitGroup
}

// OpenReceiver fails with ErrNoQueue for a queue that does not exist.
func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	c.urls.forget(opts.Queue) // it may have been deleted
	in, err := c.inFlight(ctx, opts.Queue)
	if err != nil {
		return nil, err
	}
	r := &receiver{
		inFlight: in, ended: make(chan struct{}),
		ask: asking{wait: pollWait, lease: c.cfg.Lease, completesFirst: opts.CompletesFirst},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receivers == nil {
		return nil, transport.ErrClosed
	}
	c.receivers[r] = struct{}{}
	return r, nil
}

// Window does nothing: a receiver prefetches nothing.
func (r *receiver) Window(int) {}

// Receive polls until there are messages.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	if !r.enter() {
		return nil, transport.ErrClosed
	}
	defer r.polls.Done()
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		ask := r.ask
		ask.limit = max(1, limit)
		p := r.inFlight.poll(ask)
		if p == nil {
			return nil, transport.ErrClosed
		}
		if err := r.await(ctx, p); err != nil {
			return nil, err
		}
		if ds := r.inFlight.deliveries(p); len(ds) > 0 || p.err != nil {
			return ds, p.err
		}
	}
}

func (r *receiver) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.polls.Add(1)
	}
	return !r.closed
}

// await waits for p. When ctx ends or the receiver is closed, it ends p. Messages of an ended poll are returned in the
// first case, and returned to the queue in the second.
func (r *receiver) await(ctx context.Context, p *poll) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-r.ended:
	}
	p.end()
	select {
	case <-r.ended:
		r.inFlight.requeue(p)
		return transport.ErrClosed
	default:
	}
	if len(p.ms) > 0 {
		return nil
	}
	return ctx.Err()
}

// Close ends the polls and returns their messages to the queue.
func (r *receiver) Close() error {
	c := r.inFlight.conn
	c.mu.Lock()
	delete(c.receivers, r)
	c.mu.Unlock()
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.ended)
	}
	r.mu.Unlock()
	r.polls.Wait()
	return nil
}
