package asb

import (
	"context"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// Inspect implements [transport.Inspector]. The service's count of ready messages includes messages in flight: those of
// this process are subtracted, those of others are not known. Without the right to manage the namespace, it reports
// only that the queues exist.
func (c *conn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	stats, err := c.inspectSome(ctx, queues)
	return stats, c.orClosed(err)
}

func (c *conn) inspectSome(ctx context.Context, queues []string) ([]transport.QueueStats, error) {
	ctx, cancel := c.until(ctx)
	defer cancel()
	if len(queues) == 0 {
		return c.inspectAll(ctx)
	}
	stats := make([]transport.QueueStats, 0, len(queues))
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
	return c.stats(name, &found.QueueRuntimeProperties), nil
}

func (c *conn) stats(name string, found *admin.QueueRuntimeProperties) transport.QueueStats {
	return transport.QueueStats{
		Name:      name,
		Ready:     max(0, int64(found.ActiveMessageCount)-c.held(name)),
		Unsettled: -1,
		Delayed:   int64(found.ScheduledMessageCount),
	}
}

// held returns how many messages of a queue this conn has in flight.
func (c *conn) held(queue string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for r := range c.receivers {
		if r.queue == queue {
			n += r.held()
		}
	}
	return int64(n)
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
			if name, ok := strings.CutPrefix(q.QueueName, c.naming.prefix); ok {
				stats = append(stats, c.stats(name, &q.QueueRuntimeProperties))
			}
		}
	}
	return stats, nil
}
