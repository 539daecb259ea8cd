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

// topology is the part of a conn that creates, compares and removes queues and subscriptions.
type topology struct{ *core }

func (t *topology) Install(ctx context.Context, plan transport.Plan) error {
	return t.call(ctx, "Install", "", func() error {
		for _, q := range plan.Queues {
			created := t.b.create(q.Name)
			if q.Timers && created.names == nil {
				created.names = map[string]*item{}
			}
		}
		for _, name := range plan.Inboxes {
			t.b.createInbox(name)
		}
		if len(plan.Records) > 0 {
			t.b.createRecords()
		}
		return nil
	})
}

func (t *topology) Verify(ctx context.Context, plan transport.Plan) (found []transport.Finding, err error) {
	err = t.call(ctx, "Verify", "", func() error {
		for _, q := range plan.Queues {
			switch there := t.b.queues[q.Name]; {
			case there == nil:
				found = append(found, transport.Finding{Kind: "queue", Name: q.Name, State: transport.Missing})
			case q.Timers && there.names == nil:
				found = append(found, transport.Finding{
					Kind: "queue", Name: q.Name, State: transport.Differs, Detail: "it has no timers",
				})
			}
		}
		for _, name := range plan.Inboxes {
			if t.b.inboxes[name] == nil {
				found = append(found, transport.Finding{Kind: "inbox", Name: name, State: transport.Missing})
			}
		}
		if len(plan.Records) > 0 && t.b.records == nil {
			found = append(found, transport.Finding{Kind: "table", Name: "records", State: transport.Missing})
		}
		return nil
	})
	return found, err
}

func (t *topology) VerifySubscriptions(
	ctx context.Context, queue string, types []string,
) (found []transport.Finding, err error) {
	err = t.call(ctx, "VerifySubscriptions", queue, func() error {
		q := t.b.queues[queue]
		for _, name := range types {
			if q == nil || !slices.Contains(t.b.subscribers[name], q) {
				found = append(found, transport.Finding{Kind: "subscription", Name: name, State: transport.Missing})
			}
		}
		return nil
	})
	return found, err
}

// Remove deletes queues and inboxes. It fails a Receive that waits for one of the queues, and ends
// the leases of their deliveries.
func (t *topology) Remove(ctx context.Context, queues ...string) error {
	return t.call(ctx, "Remove", strings.Join(queues, " "), func() error {
		for _, name := range queues {
			t.b.remove(name)
			t.b.remove(name + deadSuffix)
			delete(t.b.inboxes, name)
		}
		return nil
	})
}

func (t *topology) Subscribe(ctx context.Context, queue string, types []string) error {
	return t.call(ctx, "Subscribe", queue, func() error {
		q, err := t.b.find(queue)
		if err != nil {
			return err
		}
		for _, name := range types {
			if !slices.Contains(t.b.subscribers[name], q) {
				t.b.subscribers[name] = append(t.b.subscribers[name], q)
			}
		}
		return nil
	})
}

func (t *topology) Unsubscribe(ctx context.Context, name string, types []string) error {
	return t.call(ctx, "Unsubscribe", name, func() error {
		for _, of := range types {
			t.b.unsubscribe(name, of)
		}
		return nil
	})
}

func (t *topology) Inspect(ctx context.Context, queues ...string) (stats []transport.QueueStats, err error) {
	err = t.call(ctx, "Inspect", strings.Join(queues, " "), func() error {
		if len(queues) == 0 {
			queues = slices.Sorted(maps.Keys(t.b.queues))
		}
		for _, name := range queues {
			q, err := t.b.find(name)
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
