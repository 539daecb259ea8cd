package inmemory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// deadSuffix follows the name of a queue in that of its dead-letter queue.
const deadSuffix = ".dead"

func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	return c.call(ctx, "Install", "", func() error {
		for _, q := range plan.Queues {
			created := c.b.create(q.Name)
			if q.Timers && created.names == nil {
				created.names = map[string]*item{}
			}
		}
		for _, name := range plan.Inboxes {
			c.b.createInbox(name)
		}
		if len(plan.Records) > 0 {
			c.b.createRecords()
		}
		return nil
	})
}

func (c *conn) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	err = c.call(ctx, "Verify", "", func() error {
		for _, q := range plan.Queues {
			switch there := c.b.queues[q.Name]; {
			case there == nil:
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: transport.Missing})
			case q.Timers && there.names == nil:
				found = append(found, transport.Finding{
					Kind: "queue", Name: q.Name, State: transport.Differs, Detail: "it has no timers",
				})
			}
		}
		for _, name := range plan.Inboxes {
			if c.b.inboxes[name] == nil {
				found = append(found, transport.Finding{Kind: "inbox", Name: name, State: transport.Missing})
			}
		}
		if len(plan.Records) > 0 && c.b.records == nil {
			found = append(found, transport.Finding{Kind: "table", Name: "records", State: transport.Missing})
		}
		return nil
	})
	return found, err
}

func (c *conn) VerifySubscriptions(
	ctx context.Context, queue string, types []string,
) (found []transport.Finding, err error) {
	err = c.call(ctx, "VerifySubscriptions", queue, func() error {
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

// Remove deletes queues and inboxes. It fails a Receive that waits for one of the queues, and ends
// the leases of their deliveries.
func (c *conn) Remove(ctx context.Context, queues ...string) error {
	return c.call(ctx, "Remove", strings.Join(queues, " "), func() error {
		for _, name := range queues {
			c.b.remove(name)
			c.b.remove(name + deadSuffix)
			delete(c.b.inboxes, name)
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
	for of := range b.subscribers {
		b.unsubscribe(name, of)
	}
	for _, it := range q.timed {
		q.forget(it)
	}
	q.wake()
}

func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	return c.call(ctx, "Subscribe", queue, func() error {
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
	return c.call(ctx, "Unsubscribe", name, func() error {
		for _, of := range types {
			c.b.unsubscribe(name, of)
		}
		return nil
	})
}

func (b *broker) unsubscribe(name, of string) {
	if subscribed := b.subscribers[of]; subscribed != nil {
		b.subscribers[of] = slices.DeleteFunc(subscribed, func(q *queue) bool { return q.name == name })
	}
}

func (c *conn) Inspect(ctx context.Context, queues ...string) (stats []transport.QueueStats, err error) {
	err = c.call(ctx, "Inspect", strings.Join(queues, " "), func() error {
		if len(queues) == 0 {
			queues = slices.Sorted(maps.Keys(c.b.queues))
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
	return stats, err
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
