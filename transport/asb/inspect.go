package asb

import (
	"context"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// inspector is the part of a conn that counts messages.
type inspector struct {
	*core
	receivers *receivers
}

// Inspect implements [transport.Inspector]. The service's count of ready messages includes messages
// in flight: those of this process are subtracted, those of others are not known. Without the right
// to manage the namespace, it reports only that the queues exist.
func (in *inspector) Inspect(
	ctx context.Context, queues ...string,
) (stats []transport.QueueStats, err error) {
	defer func() { err = in.orClosed(err) }()
	ctx, cancel := joined(ctx, in.ctx)
	defer cancel()
	if len(queues) == 0 {
		return in.inspectAll(ctx)
	}
	for _, name := range queues {
		s, err := in.inspect(ctx, name)
		if err != nil {
			return nil, wrap(managed(err), "look at queue %q", name)
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func (in *inspector) inspect(ctx context.Context, name string) (transport.QueueStats, error) {
	path, dead, err := in.naming.queue(name)
	name = in.ShortName(name)
	if err != nil {
		return transport.QueueStats{}, err
	}
	found, err := in.admin.GetQueueRuntimeProperties(ctx, path, nil)
	switch {
	case unmanageable(err):
		return transport.QueueStats{Name: name, Ready: -1, Unsettled: -1, Delayed: -1}, in.exists(ctx, path)
	case err != nil:
		return transport.QueueStats{}, err
	case found == nil:
		return transport.QueueStats{}, transport.ErrNoQueue
	case dead:
		return transport.QueueStats{Name: name, Ready: int64(found.DeadLetterMessageCount), Unsettled: -1}, nil
	}
	return in.stats(name, path, &found.QueueRuntimeProperties), nil
}

func (in *inspector) stats(
	name, path string, found *admin.QueueRuntimeProperties,
) transport.QueueStats {
	return transport.QueueStats{
		Name:      name,
		Ready:     max(0, int64(found.ActiveMessageCount)-int64(len(in.receivers.inFlight(path, false)))),
		Unsettled: -1,
		Delayed:   int64(found.ScheduledMessageCount),
	}
}

// inspectAll returns the statistics of all queues of the hierarchy.
func (in *inspector) inspectAll(ctx context.Context) ([]transport.QueueStats, error) {
	var stats []transport.QueueStats
	for pages := in.admin.NewListQueuesRuntimePropertiesPager(nil); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, wrap(managed(err), "list queues")
		}
		for i := range page.QueueRuntimeProperties {
			q := &page.QueueRuntimeProperties[i]
			if strings.HasPrefix(q.QueueName, in.naming.prefix) {
				stats = append(stats, in.stats(in.naming.short(q.QueueName), q.QueueName, &q.QueueRuntimeProperties))
			}
		}
	}
	return stats, nil
}
