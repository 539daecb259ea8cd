package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Receiver = (*receiver)(nil)
	_ transport.Renewer  = (*receiver)(nil)
	_ transport.Listener = (*receiver)(nil)
)

// receiver receives from one queue. It prefetches nothing: each poll requests as many messages as
// the caller.
type receiver struct {
	inFlight *inFlight
	ask      asking      // without the limit
	heard    atomic.Bool // SQS has answered the last poll

	ctx   context.Context //nolint:containedctx // ends with Close
	close context.CancelFunc
	mu    sync.Mutex // guards polls.Add against close
	polls sync.WaitGroup
}

// OpenReceiver fails with ErrNoQueue for a queue that does not exist.
func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	in, err := c.inFlight(ctx, opts.Queue)
	if errors.Is(err, transport.ErrNoQueue) {
		return nil, fmt.Errorf("%w%s", err, c.where(ctx))
	}
	if err == nil {
		err = c.checkReceived(opts.Queue)
	}
	if err != nil {
		return nil, err
	}
	r := &receiver{inFlight: in, ask: asking{wait: pollWait, lease: c.cfg.Lease, completesFirst: opts.CompletesFirst}}
	r.ctx, r.close = context.WithCancel(context.Background())
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

// Listening implements [transport.Listener].
func (r *receiver) Listening() bool { return r.heard.Load() }

// firstWait is how long the first poll after a failure waits for a message, so that the answer
// shows soon that SQS answers.
const firstWait = time.Second

// Receive polls until there are messages.
func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return nil, transport.ErrClosed
	}
	r.polls.Add(1)
	r.mu.Unlock()
	defer r.polls.Done()
	ask := r.ask
	ask.limit = max(1, limit)
	for ctx.Err() == nil {
		ask.wait = r.ask.wait
		if !r.heard.Load() {
			ask.wait = min(ask.wait, firstWait)
		}
		p, err := r.inFlight.poll(ctx, r.ctx, ask)
		r.heard.Store(err == nil)
		if err != nil {
			return nil, err
		}
		ds := make([]transport.Delivery, 0, len(p.ms))
		for i := range p.ms {
			if d := r.inFlight.deliver(&p.ms[i], p); d != nil {
				ds = append(ds, d)
			}
		}
		if len(ds) > 0 {
			return ds, nil
		}
	}
	return nil, ctx.Err()
}

// Close ends the polls and returns their messages to the queue.
func (r *receiver) Close() error {
	c := r.inFlight.conn
	c.mu.Lock()
	delete(c.receivers, r)
	c.mu.Unlock()
	r.mu.Lock()
	r.close()
	r.mu.Unlock()
	r.polls.Wait()
	return nil
}
