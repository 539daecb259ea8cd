package asb

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// Inspect implements [transport.Inspector]. The service's count of ready messages includes messages
// in flight: those of this process are subtracted, those of others are not known. Without the right
// to manage the namespace, it reports only that the queues exist.
func (c *conn) Inspect(ctx context.Context, queues ...string) (stats []transport.QueueStats, err error) {
	defer func() { err = c.orClosed(err) }()
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	if len(queues) == 0 {
		return c.inspectAll(ctx)
	}
	for _, name := range queues {
		s, err := c.inspect(ctx, name)
		if err != nil {
			return nil, wrap(managed(err), "look at queue %q", name)
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func (c *conn) inspect(ctx context.Context, name string) (transport.QueueStats, error) {
	path, dead, err := c.naming.queue(name)
	name = c.ShortName(name)
	if err != nil {
		return transport.QueueStats{}, err
	}
	found, err := c.admin.GetQueueRuntimeProperties(ctx, path, nil)
	switch {
	case unmanageable(err):
		return transport.QueueStats{Name: name, Ready: -1, Unsettled: -1, Delayed: -1}, c.exists(ctx, path)
	case err != nil:
		return transport.QueueStats{}, err
	case found == nil:
		return transport.QueueStats{}, transport.ErrNoQueue
	case dead:
		return transport.QueueStats{Name: name, Ready: int64(found.DeadLetterMessageCount), Unsettled: -1}, nil
	}
	return c.stats(name, path, &found.QueueRuntimeProperties), nil
}

func (c *conn) stats(name, path string, found *admin.QueueRuntimeProperties) transport.QueueStats {
	return transport.QueueStats{
		Name:      name,
		Ready:     max(0, int64(found.ActiveMessageCount)-int64(len(c.inFlight(path, false)))),
		Unsettled: -1,
		Delayed:   int64(found.ScheduledMessageCount),
	}
}

// inFlight returns the deliveries of a queue, or of its dead letters, that this conn has in flight.
func (c *conn) inFlight(path string, dead bool) (all []*delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.receivers {
		if r.path == path && r.dead == dead {
			r.mu.Lock()
			all = slices.AppendSeq(all, maps.Keys(r.inFlight))
			r.mu.Unlock()
		}
	}
	return all
}

// inspectAll returns the statistics of all queues of the hierarchy.
func (c *conn) inspectAll(ctx context.Context) ([]transport.QueueStats, error) {
	var stats []transport.QueueStats
	for pages := c.admin.NewListQueuesRuntimePropertiesPager(nil); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, wrap(managed(err), "list queues")
		}
		for i := range page.QueueRuntimeProperties {
			q := &page.QueueRuntimeProperties[i]
			if strings.HasPrefix(q.QueueName, c.naming.prefix) {
				stats = append(stats, c.stats(c.naming.short(q.QueueName), q.QueueName, &q.QueueRuntimeProperties))
			}
		}
	}
	return stats, nil
}
