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

// Install implements [transport.Installer]: it creates missing queues, and the topics that events are published to.
// Without the right to manage the namespace it fails unless the queues exist.
func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	defer c.forgetDenials()
	return c.orClosed(c.install(ctx, plan))
}

func (c *conn) install(ctx context.Context, plan transport.Plan) error {
	ctx, cancel := c.until(ctx)
	defer cancel()
	for _, q := range plan.Queues {
		if err := c.installQueue(ctx, q); err != nil {
			return err
		}
		c.own(q)
	}
	for _, topic := range c.published(plan.Types) {
		if err := c.installTopic(ctx, topic); err != nil {
			return err
		}
	}
	return nil
}

// published returns the topics that messages of these types are published to.
func (c *conn) published(types [][]string) (topics []string) {
	for _, own := range types {
		if len(own) > 0 {
			topics = append(topics, c.config.Topology.publishTo(own).topic)
		}
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

// own records a queue whose dead letters the endpoint moves.
func (c *conn) own(q transport.Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !q.Shared && !slices.Contains(c.installed, q.Name) {
		c.installed = append(c.installed, q.Name)
	}
}

func (c *conn) installQueue(ctx context.Context, q transport.Queue) error {
	path, err := c.naming.entity(q.Name)
	if err != nil {
		return fmt.Errorf("install queue: %w", err)
	}
	found, err := c.admin.GetQueue(ctx, path, nil)
	if err == nil && found != nil {
		c.compare(ctx, q, &found.QueueProperties)
		return nil
	}
	if err == nil {
		p := c.queueProperties(q)
		err = c.withinEmulator(ctx, &p.MaxDeliveryCount, &p.MaxSizeInMegabytes, func() error {
			_, err := c.admin.CreateQueue(ctx, path, &admin.CreateQueueOptions{Properties: p})
			return err
		})
		err = c.conflict(ctx, err, func() (bool, error) {
			found, err := c.admin.GetQueue(ctx, path, nil)
			return found != nil, err
		})
	}
	if unmanageable(err) {
		if err = c.exists(ctx, path); err == nil {
			return nil
		}
		if errors.Is(plain(err), transport.ErrNoQueue) {
			return fmt.Errorf("asb: install queue %q: %w, and the credential has %w: create the queue by other means, or use a credential that may", q.Name, transport.ErrNoQueue, errManage)
		}
	}
	return wrap(managed(err), "install queue %q", q.Name)
}

// conflict returns the outcome of creating an entity that another process is creating: it waits until the entity
// exists, which may take the service a while.
func (c *conn) conflict(ctx context.Context, err error, there func() (bool, error)) error {
	pause := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for try := 0; status(err) == http.StatusConflict && try < 10; try++ {
		found, looked := there()
		if found || looked != nil {
			return looked
		}
		if pause.Wait(ctx) != nil {
			return ctx.Err()
		}
	}
	return err
}

func (c *conn) queueProperties(q transport.Queue) *admin.QueueProperties {
	p := &admin.QueueProperties{
		LockDuration:            new(duration(cmp.Or(c.config.LockDuration, defaultLock))),
		MaxSizeInMegabytes:      new(int32(cmp.Or(c.config.MaxSize, defaultMaxSize))),                //nolint:gosec // checked
		MaxDeliveryCount:        new(int32(cmp.Or(c.config.MaxDeliveryCount, defaultDeliveryCount))), //nolint:gosec // checked
		EnableBatchedOperations: new(true),
	}
	if c.config.Partitioned {
		p.EnablePartitioning = new(true)
	}
	if q.Shared { // no endpoint moves its dead letters
		p.MaxDeliveryCount = new(int32(math.MaxInt32))
		return p
	}
	if d := c.config.DuplicateDetection; d > 0 {
		p.RequiresDuplicateDetection = new(true)
		p.DuplicateDetectionHistoryTimeWindow = new(duration(d))
	}
	return p
}

// compare logs which settings of an existing queue are not fit for an endpoint.
func (c *conn) compare(ctx context.Context, q transport.Queue, found *admin.QueueProperties) {
	if q.Shared {
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
	found, err := c.admin.GetTopic(ctx, path, nil)
	if err == nil && found == nil {
		p := &admin.TopicProperties{
			MaxSizeInMegabytes:      new(int32(cmp.Or(c.config.MaxSize, defaultMaxSize))), //nolint:gosec // checked
			EnableBatchedOperations: new(true),
		}
		if c.config.Partitioned {
			p.EnablePartitioning = new(true)
		}
		err = c.withinEmulator(ctx, nil, &p.MaxSizeInMegabytes, func() error {
			_, err := c.admin.CreateTopic(ctx, path, &admin.CreateTopicOptions{Properties: p})
			return err
		})
		err = c.conflict(ctx, err, func() (bool, error) {
			found, err := c.admin.GetTopic(ctx, path, nil)
			return found != nil, err
		})
	}
	if unmanageable(err) {
		return nil // a missing topic has no subscribers
	}
	return wrap(managed(err), "install topic %q", name)
}

// lockOf returns how long messages of a queue are locked.
func (c *conn) lockOf(ctx context.Context, name string) (time.Duration, error) {
	path, _, err := c.naming.queue(name)
	if err != nil {
		return 0, err
	}
	found, err := c.admin.GetQueue(ctx, path, nil)
	if err != nil || found == nil || found.LockDuration == nil {
		return 0, err
	}
	return parseDuration(*found.LockDuration), nil
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
