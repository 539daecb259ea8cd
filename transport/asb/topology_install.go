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

// Install implements [transport.Installer]: it creates missing queues, and the topics that events
// are published to. Without the right to manage the namespace it fails unless the queues exist.
func (c *conn) Install(ctx context.Context, plan transport.Plan) (err error) {
	defer c.forgetDenials()
	defer func() { err = c.orClosed(err) }()
	if err := c.checkNames(plan); err != nil {
		return err
	}
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	for _, q := range plan.Queues {
		if err := c.installQueue(ctx, q); err != nil {
			return err
		}
		c.mu.Lock()
		if !q.Shared && !slices.Contains(c.own, q.Name) {
			c.own = append(c.own, q.Name)
		}
		c.mu.Unlock()
	}
	for _, topic := range c.published(plan.Types) {
		if err := c.installTopic(ctx, topic); err != nil {
			return err
		}
	}
	return nil
}

// checkNames fails if a topic of the plan has the name of a queue: queues and topics share one set
// of names, which does not distinguish letters by case, and the events would be sent to the queue.
func (c *conn) checkNames(plan transport.Plan) error {
	for _, topic := range c.published(plan.Types) {
		path := c.naming.path(topic)
		for _, q := range plan.Queues {
			if strings.EqualFold(c.naming.path(q.Name), path) {
				return fmt.Errorf("asb: the topic %q of an event has the name of the queue %q: use another name for the queue, or "+
					"another topic by Topology.PublishTo", topic, q.Name)
			}
		}
	}
	return nil
}

// published returns the topics that messages of these types are published to.
func (c *conn) published(types [][]string) (topics []string) {
	for _, own := range types {
		if len(own) > 0 {
			topics = append(topics, c.ns.Topology.publishTo(own).topic)
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

func (c *conn) installQueue(ctx context.Context, q transport.Queue) error {
	path, err := c.naming.entity(q.Name)
	if err != nil {
		return fmt.Errorf("install queue: %w", err)
	}
	p := c.queueProperties(q)
	found, err := ensure(ctx, c, &p.MaxDeliveryCount, &p.MaxSizeInMegabytes,
		func() (*admin.GetQueueResponse, error) { return c.admin.GetQueue(ctx, path, nil) },
		func() (admin.CreateQueueResponse, error) {
			return c.admin.CreateQueue(ctx, path, &admin.CreateQueueOptions{Properties: p})
		})
	if found != nil && found.LockDuration == nil && found.Status == nil { // the client reads no property of another entity
		return fmt.Errorf("asb: install queue %q: a topic has that name: use another name for the queue", q.Name)
	}
	if found != nil {
		c.compare(ctx, q, &found.QueueProperties)
	}
	if unmanageable(err) {
		err = c.exists(ctx, path)
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
	ctx context.Context, c *conn, deliveries, size **int32, find func() (*F, error), create func() (C, error),
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

func (c *conn) queueProperties(q transport.Queue) *admin.QueueProperties {
	p := &admin.QueueProperties{
		LockDuration:            new(duration(cmp.Or(c.ns.LockDuration, defaultLock))),
		MaxSizeInMegabytes:      new(int32(c.ns.MaxSize)),          //nolint:gosec // checked
		MaxDeliveryCount:        new(int32(c.ns.MaxDeliveryCount)), //nolint:gosec // checked
		EnableBatchedOperations: new(true),
	}
	if c.ns.Partitioned {
		p.EnablePartitioning = new(true)
	}
	if q.Shared { // no endpoint moves its dead letters
		p.MaxDeliveryCount = new(int32(math.MaxInt32))
		return p
	}
	if d := c.ns.DuplicateDetection; d > 0 {
		p.RequiresDuplicateDetection = new(true)
		p.DuplicateDetectionHistoryTimeWindow = new(duration(d))
	}
	return p
}

// compare logs which settings of an existing queue are not fit for an endpoint.
func (c *conn) compare(ctx context.Context, q transport.Queue, found *admin.QueueProperties) {
	if q.Shared {
		if limit := c.lowLimit(q, found); limit != "" {
			c.log.WarnContext(ctx, "a shared queue has a delivery limit", "queue", q.Name, "setting", limit)
		}
		return
	}
	if c.emulated(valueOr(found.MaxDeliveryCount, 0)) {
		c.warnEmulator(ctx)
	}
	for _, setting := range c.unfit(q, found) {
		c.log.WarnContext(ctx, "a queue exists with settings that are not fit for the endpoint, and is used as it is",
			"queue", q.Name, "setting", setting)
	}
}

func (c *conn) installTopic(ctx context.Context, name string) error {
	path, err := c.naming.entity(name)
	if err != nil {
		return fmt.Errorf("install topic: %w", err)
	}
	p := &admin.TopicProperties{
		MaxSizeInMegabytes:      new(int32(c.ns.MaxSize)), //nolint:gosec // checked
		EnableBatchedOperations: new(true),
	}
	if c.ns.Partitioned {
		p.EnablePartitioning = new(true)
	}
	found, err := ensure(ctx, c, nil, &p.MaxSizeInMegabytes,
		func() (*admin.GetTopicResponse, error) { return c.admin.GetTopic(ctx, path, nil) },
		func() (admin.CreateTopicResponse, error) {
			return c.admin.CreateTopic(ctx, path, &admin.CreateTopicOptions{Properties: p})
		})
	if found != nil && found.MaxSizeInMegabytes == nil && found.Status == nil { // the client reads no property of another entity
		return fmt.Errorf("asb: install topic %q: a queue has that name: use another topic by Topology.PublishTo", name)
	}
	if unmanageable(err) {
		return nil // a missing topic has no subscribers
	}
	if err == nil {
		err = c.knowTopic(path)
	}
	return wrap(managed(err), "install topic %q", name)
}

// knowTopic notes that a topic exists.
func (c *conn) knowTopic(path string) error {
	s, err := c.sender(path)
	if err == nil {
		s.existed.Store(true)
	}
	return err
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
