package inmemory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Conn       = (*conn)(nil)
	_ transport.Installer  = (*conn)(nil)
	_ transport.Subscriber = (*conn)(nil)
	_ transport.Canceler   = (*conn)(nil)
	_ transport.Inspector  = (*conn)(nil)
	_ transport.Satellites = (*conn)(nil)
)

type conn struct {
	t *Transport
	b *broker

	// Guarded by b.mu.
	closed    bool
	receivers map[*receiver]bool
	held      list // what its deliveries hold
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
	r := &receiver{conn: c, queue: q, done: make(chan struct{})}
	c.receivers[r] = true
	return withoutReceiver(r, c.t.Lease > 0, c.t.Without), nil
}

// Close returns what was not settled to the front of its queue, where it has used up an attempt.
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
		it.queue.unhand(it)
		it.queue.restore(it, now)
	}
	return nil
}

func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	if err := c.t.refuse(ctx, "Install", ""); err != nil {
		return err
	}
	return c.locked(func() error {
		for _, q := range plan.Queues {
			c.b.create(q.Name)
		}
		return nil
	})
}

func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	if err := c.t.refuse(ctx, "Subscribe", queue); err != nil {
		return err
	}
	return c.locked(func() error {
		q, err := c.b.find(queue)
		if err != nil {
			return err
		}
		for _, name := range types {
			if !slices.Contains(c.b.subscribers[name], q) {
				c.b.subscribers[name] = append(c.b.subscribers[name], q)
			}
		}
		return nil
	})
}

func (c *conn) Unsubscribe(ctx context.Context, name string, types []string) error {
	if err := c.t.refuse(ctx, "Unsubscribe", name); err != nil {
		return err
	}
	return c.locked(func() error {
		for _, of := range types {
			c.b.subscribers[of] = slices.DeleteFunc(c.b.subscribers[of], func(q *queue) bool {
				return q.name == name
			})
		}
		return nil
	})
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

func (c *conn) Inspect(ctx context.Context, queues ...string) (stats []transport.QueueStats, err error) {
	if err := c.t.refuse(ctx, "Inspect", strings.Join(queues, " ")); err != nil {
		return nil, err
	}
	err = c.locked(func() error {
		if len(queues) == 0 {
			queues = c.b.names()
		}
		for _, name := range queues {
			q, err := c.b.find(name)
			if err != nil {
				return err
			}
			stats = append(stats, q.stats())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return stats, nil
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

// locked runs f with the broker locked, unless c is closed.
func (c *conn) locked(f func() error) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.closed {
		return transport.ErrClosed
	}
	return f()
}

func (b *broker) names() []string {
	names := make([]string, 0, len(b.queues))
	for name := range b.queues {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (q *queue) stats() transport.QueueStats {
	q.advance()
	s := transport.QueueStats{
		Name:      q.name,
		Ready:     int64(q.ready.len),
		Unsettled: int64(q.held),
		Delayed:   int64(q.delayed),
	}
	if q.ready.first != nil {
		s.Oldest = time.Since(q.ready.first.since)
	}
	return s
}
