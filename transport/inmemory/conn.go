package inmemory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Canceler   = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
)

type conn struct {
	t *Transport
	b *broker

	// Guarded by b.mu.
	closed    bool
	receivers map[*receiver]bool
	held      list // messages of its unsettled deliveries
}

func (c *conn) Limits() transport.Limits {
	l := transport.Limits{
		MaxBody:     c.t.MaxBody,
		MaxHeaders:  c.t.MaxHeaders,
		Lease:       c.t.Lease,
		MaxReceive:  c.t.MaxReceive,
		FreeRelease: c.t.offers(FreeRelease),
		Atomic:      c.t.offers(Transactor),
	}
	if c.t.offers(Delay) {
		l.MaxDelay = c.t.MaxDelay
		if l.MaxDelay == 0 {
			l.MaxDelay = transport.Unlimited
		}
	}
	return l
}

func (c *conn) OpenReceiver(ctx context.Context, opts transport.ReceiverOptions) (transport.Receiver, error) {
	if err := c.t.refuse(ctx, "OpenReceiver", opts.Queue); err != nil {
		return nil, err
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return nil, transport.ErrClosed
	}
	q, err := c.b.find(opts.Queue)
	if err != nil {
		return nil, err
	}
	r := &receiver{conn: c, name: q.name, queue: q, done: make(chan struct{})}
	c.receivers[r] = true
	return withoutReceiver(r, c.t.Lease > 0, c.t.Without), nil
}

// Close returns unsettled messages to the front of their queues, with an attempt used up.
func (c *conn) Close() error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	for r := range c.receivers {
		r.stop()
	}
	now := time.Now()
	for c.held.last != nil {
		it := c.held.last
		it.queue.reclaim(it)
		it.queue.restore(it, now)
	}
	return nil
}

func (c *conn) Cancel(ctx context.Context, receipt string) error {
	if err := c.t.refuse(ctx, "Cancel", receipt); err != nil {
		return err
	}
	return c.locked(func() error {
		it := c.b.receipts[receipt]
		if it == nil {
			return fmt.Errorf("inmemory: cancel %q: %w", receipt, transport.ErrNotFound)
		}
		it.queue.discard(it)
		return nil
	})
}

func (c *conn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	var (
		found []transport.Satellite
		errs  []error
	)
	for _, s := range c.t.Satellites {
		if err := c.t.refuse(ctx, "Satellites", s.Queue); err != nil {
			errs = append(errs, err)
			continue
		}
		found = append(found, s)
	}
	return found, errors.Join(errs...)
}

// locked calls f with the broker locked, unless c is closed.
func (c *conn) locked(f func() error) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return transport.ErrClosed
	}
	return f()
}
