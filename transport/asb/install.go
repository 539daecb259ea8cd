package asb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// installer is the part of a conn that creates and deletes queues and topics.
type installer struct {
	*core
	senders   *senders
	receivers *receivers
}

// Install implements [transport.Installer]: it creates missing queues, and the topics that events
// are published to. Without the right to manage the namespace it fails unless the queues exist.
func (inst *installer) Install(ctx context.Context, plan transport.Plan) (err error) {
	defer inst.senders.forgetDenials()
	defer func() { err = inst.orClosed(err) }()
	if err := inst.checkNames(plan); err != nil {
		return err
	}
	ctx, cancel := joined(ctx, inst.ctx)
	defer cancel()
	for _, q := range plan.Queues {
		if err := inst.installQueue(ctx, q); err != nil {
			return err
		}
		if !q.Shared {
			inst.receivers.note(q.Name)
		}
	}
	for _, topic := range inst.published(plan.Types) {
		if err := inst.installTopic(ctx, topic); err != nil {
			return err
		}
	}
	return nil
}

// checkNames fails if a topic of the plan has the name of a queue: queues and topics share one set
// of names, which does not distinguish letters by case, and the events would be sent to the queue.
func (inst *installer) checkNames(plan transport.Plan) error {
	for _, topic := range inst.published(plan.Types) {
		path := inst.naming.path(topic)
		for _, q := range plan.Queues {
			if strings.EqualFold(inst.naming.path(q.Name), path) {
				return fmt.Errorf("asb: the topic %q of an event has the name of the queue %q: use another name for the queue, or "+
					"another topic by Topology.PublishTo", topic, q.Name)
			}
		}
	}
	return nil
}

func (inst *installer) installQueue(ctx context.Context, q transport.Queue) error {
	path, err := inst.naming.entity(q.Name)
	if err != nil {
		return fmt.Errorf("install queue: %w", err)
	}
	p := inst.queueProperties(q)
	found, err := ensure(ctx, inst.core, &p.MaxDeliveryCount, &p.MaxSizeInMegabytes,
		func() (*admin.GetQueueResponse, error) { return inst.admin.GetQueue(ctx, path, nil) },
		func() (admin.CreateQueueResponse, error) {
			return inst.admin.CreateQueue(ctx, path, &admin.CreateQueueOptions{Properties: p})
		})
	if found != nil && found.LockDuration == nil && found.Status == nil { // the client reads no property of another entity
		return fmt.Errorf("asb: install queue %q: a topic has that name: use another name for the queue", q.Name)
	}
	if found != nil {
		inst.compare(ctx, q, &found.QueueProperties)
	}
	if unmanageable(err) {
		err = inst.exists(ctx, path)
		if errors.Is(plain(err), transport.ErrNoQueue) {
			return fmt.Errorf("asb: install queue %q: %w, and the credential has %w: create the queue by other means, or use a credential that may", q.Name, transport.ErrNoQueue, errManage)
		}
	}
	return wrap(managed(err), "install queue %q", q.Name)
}

// ensure returns an entity that exists. Else it creates it and returns nil: if an emulator refuses
// the values of the service, with its own, and if another process is creating the entity, it waits
// until the entity exists, which may take the service a while. Either pointer may be nil.
func ensure[F, C any](
	ctx context.Context, c *core, deliveries, size **int32, find func() (*F, error), create func() (C, error),
) (*F, error) {
	if found, err := find(); found != nil || err != nil {
		return found, err
	}
	_, err := create()
	if c.ns.insecure && status(err) == http.StatusBadRequest {
		c.lower(ctx, deliveries, size)
		_, err = create()
	}
	pause := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for try := 0; status(err) == http.StatusConflict && try < 10; try++ {
		if found, err := find(); found != nil || err != nil {
			return nil, err
		}
		if pause.Wait(ctx) != nil {
			return nil, ctx.Err()
		}
	}
	return nil, err
}

func (inst *installer) queueProperties(q transport.Queue) *admin.QueueProperties {
	p := &admin.QueueProperties{
		LockDuration:            new(duration(cmp.Or(inst.ns.LockDuration, defaultLock))),
		MaxSizeInMegabytes:      new(int32(inst.ns.MaxSize)),          //nolint:gosec // checked
		MaxDeliveryCount:        new(int32(inst.ns.MaxDeliveryCount)), //nolint:gosec // checked
		EnableBatchedOperations: new(true),
	}
	if inst.ns.Partitioned {
		p.EnablePartitioning = new(true)
	}
	if q.Shared { // no endpoint moves its dead letters
		p.MaxDeliveryCount = new(int32(math.MaxInt32))
		return p
	}
	if d := inst.ns.DuplicateDetection; d > 0 {
		p.RequiresDuplicateDetection = new(true)
		p.DuplicateDetectionHistoryTimeWindow = new(duration(d))
	}
	return p
}

// compare logs which settings of an existing queue are not fit for an endpoint.
func (inst *installer) compare(
	ctx context.Context, q transport.Queue, found *admin.QueueProperties,
) {
	if q.Shared {
		if limit := inst.lowLimit(q, found); limit != "" {
			inst.log.WarnContext(ctx, "a shared queue has a delivery limit", "queue", q.Name, "setting", limit)
		}
		return
	}
	if inst.emulated(valueOr(found.MaxDeliveryCount, 0)) {
		inst.warnEmulator(ctx)
	}
	for _, setting := range inst.unfit(q, found) {
		inst.log.WarnContext(ctx, "a queue exists with settings that are not fit for the endpoint, and is used as it is",
			"queue", q.Name, "setting", setting)
	}
}

func (inst *installer) installTopic(ctx context.Context, name string) error {
	path, err := inst.naming.entity(name)
	if err != nil {
		return fmt.Errorf("install topic: %w", err)
	}
	p := &admin.TopicProperties{
		MaxSizeInMegabytes:      new(int32(inst.ns.MaxSize)), //nolint:gosec // checked
		EnableBatchedOperations: new(true),
	}
	if inst.ns.Partitioned {
		p.EnablePartitioning = new(true)
	}
	found, err := ensure(ctx, inst.core, nil, &p.MaxSizeInMegabytes,
		func() (*admin.GetTopicResponse, error) { return inst.admin.GetTopic(ctx, path, nil) },
		func() (admin.CreateTopicResponse, error) {
			return inst.admin.CreateTopic(ctx, path, &admin.CreateTopicOptions{Properties: p})
		})
	if found != nil && found.MaxSizeInMegabytes == nil && found.Status == nil { // the client reads no property of another entity
		return fmt.Errorf("asb: install topic %q: a queue has that name: use another topic by Topology.PublishTo", name)
	}
	if unmanageable(err) {
		return nil // a missing topic has no subscribers
	}
	if err == nil {
		err = inst.senders.knowTopic(path)
	}
	return wrap(managed(err), "install topic %q", name)
}

// duration returns d in ISO 8601, as the administration writes it.
func duration(d time.Duration) string {
	return "PT" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "S"
}

var durationForm = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$`)

// parseDuration returns 0 for a text that is not valid.
func parseDuration(s string) time.Duration {
	parts := durationForm.FindStringSubmatch(strings.TrimSpace(s))
	if parts == nil {
		return 0
	}
	var d time.Duration
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, err := strconv.ParseFloat(cmp.Or(parts[i+1], "0"), 64)
		if err != nil || n > 1e6 {
			return 0
		}
		d += time.Duration(n * float64(unit))
	}
	return d
}

// Remove implements [transport.Remover]: it deletes the queues, after the subscriptions of the
// hierarchy's topics that forward to them. Topics stay. It needs the right to manage the namespace.
func (inst *installer) Remove(ctx context.Context, queues ...string) error {
	ctx, cancel := joined(ctx, inst.ctx)
	defer cancel()
	paths := make([]string, len(queues))
	for i, q := range queues {
		path, err := inst.naming.entity(q)
		if err != nil {
			return err
		}
		paths[i] = path
	}
	if err := inst.removeSubscriptions(ctx, paths); err != nil {
		return inst.orClosed(wrap(managed(err), "remove subscriptions of queues %q", queues))
	}
	for i, path := range paths {
		_, err := inst.admin.DeleteQueue(ctx, path, nil)
		if err := unlessMissing(err); err != nil {
			return inst.orClosed(wrap(managed(err), "remove queue %q", queues[i]))
		}
	}
	return nil
}

// removeSubscriptions deletes the subscriptions that forward to one of the queues.
func (inst *installer) removeSubscriptions(ctx context.Context, queues []string) error {
	for topics := inst.admin.NewListTopicsPager(nil); topics.More(); {
		page, err := topics.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, topic := range page.Topics {
			if !strings.HasPrefix(topic.TopicName, inst.naming.prefix) {
				continue
			}
			if err := inst.removeFromTopic(ctx, topic.TopicName, queues); err != nil {
				return err
			}
		}
	}
	return nil
}

func (inst *installer) removeFromTopic(ctx context.Context, topic string, queues []string) error {
	var names []string // deleted after the listing, which would skip some otherwise
	for pages := inst.admin.NewListSubscriptionsPager(topic, nil); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return unlessMissing(err)
		}
		for _, s := range page.Subscriptions {
			to := valueOr(s.ForwardTo, "")
			if slices.ContainsFunc(queues, func(queue string) bool { return forwardsTo(to, queue) }) {
				names = append(names, s.SubscriptionName)
			}
		}
	}
	for _, name := range names {
		_, err := inst.admin.DeleteSubscription(ctx, topic, name, nil)
		if err := unlessMissing(err); err != nil {
			return err
		}
	}
	return nil
}
