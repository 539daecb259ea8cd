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

// receiver takes messages from one queue. It holds none: each poll asks for what there is room for now.
type receiver struct {
	inbox *inbox
	ask   asking        // but for the limit
	ended chan struct{} // closed by Close

	mu     sync.Mutex // guards closed, and Add against Wait
	closed bool
	polls  sync.WaitGroup
}

// OpenReceiver makes sure of the queue.
func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	c.urls.forget(opts.Queue) // it may have been deleted
	in, err := c.inbox(ctx, opts.Queue)
	if err != nil {
		return nil, err
	}
	r := &receiver{
		inbox: in, ask: asking{wait: pollWait, lease: c.cfg.Lease, completesFirst: opts.CompletesFirst}, ended: make(chan struct{}),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.receivers == nil {
		return nil, transport.ErrClosed
	}
	c.receivers[r] = struct{}{}
	return r, nil
}

// Window does nothing: no more is received than is asked for.
func (r *receiver) Window(int) {}

// Receive polls until messages come.
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
		p := r.inbox.poll(ask)
		if p == nil {
			return nil, transport.ErrClosed
		}
		if err := r.await(ctx, p); err != nil {
			return nil, err
		}
		if ds := r.inbox.handOut(p); len(ds) > 0 || p.err != nil {
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

// await waits for p. When ctx ends or the receiver is closed it lets SQS finish what it may be answering, and breaks
// a poll off that waits. What comes all the same is returned in the one case and given back in the other.
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
		r.inbox.giveBack(p)
		return transport.ErrClosed
	default:
	}
	if len(p.ms) > 0 {
		return nil
	}
	return ctx.Err()
}

// Close breaks off polls that wait, and gives back what the others bring.
func (r *receiver) Close() error {
	c := r.inbox.conn
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
