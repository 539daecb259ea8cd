package inmemory

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Installer            = (*conn)(nil)
	_ transport.Verifier             = (*conn)(nil)
	_ transport.SubscriptionVerifier = (*conn)(nil)
	_ transport.Remover              = (*conn)(nil)
	_ transport.Subscriber           = (*conn)(nil)
	_ transport.Inspector            = (*conn)(nil)
)

// deadSuffix follows the name of a queue in that of its dead-letter queue.
const deadSuffix = ".dead"

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

func (c *conn) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	if err := c.t.refuse(ctx, "Verify", ""); err != nil {
		return nil, err
	}
	err = c.locked(func() error {
		for _, q := range plan.Queues {
			if c.b.queues[q.Name] == nil {
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: transport.Missing})
			}
		}
		return nil
	})
	return found, err
}

func (c *conn) VerifySubscriptions(
	ctx context.Context, queue string, types []string,
) (found []transport.Finding, err error) {
	if err := c.t.refuse(ctx, "VerifySubscriptions", queue); err != nil {
		return nil, err
	}
	err = c.locked(func() error {
		q := c.b.queues[queue]
		for _, name := range types {
			if q == nil || !slices.Contains(c.b.subscribers[name], q) {
				found = append(found, transport.Finding{Kind: "subscription", Name: name, State: transport.Missing})
			}
		}
		return nil
	})
	return found, err
}

// Remove fails a Receive that waits for one of the queues, and ends the leases of their deliveries.
func (c *conn) Remove(ctx context.Context, queues ...string) error {
	if err := c.t.refuse(ctx, "Remove", strings.Join(queues, " ")); err != nil {
		return err
	}
	return c.locked(func() error {
		for _, name := range queues {
			c.b.remove(name)
			c.b.remove(name + deadSuffix)
		}
		return nil
	})
}

func (b *broker) remove(name string) {
	q := b.queues[name]
	if q == nil {
		return
	}
	delete(b.queues, name)
	for of, subscribed := range b.subscribers {
		b.subscribers[of] = slices.DeleteFunc(subscribed, func(s *queue) bool { return s == q })
	}
	for _, it := range q.timed {
		q.forget(it)
	}
	q.removed = true
	q.wake()
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
