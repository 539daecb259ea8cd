package asb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.DerivedSubscriber = (*conn)(nil)

// SubscribesDerived implements [transport.DerivedSubscriber].
func (c *conn) SubscribesDerived() bool { return c.ns.Topology.NoHierarchies }

// Subscribe implements [transport.Subscriber]: on each topic of the types it creates a subscription
// that forwards to the queue, and on shared topics a rule for each type. Without the right to
// manage the namespace it fails unless the subscriptions exist.
func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	for _, s := range c.ns.subscriptions(queue, types) {
		if err := c.subscribe(ctx, queue, s); err != nil {
			return c.orClosed(err)
		}
	}
	return nil
}

func (c *conn) subscribe(ctx context.Context, queue string, s subscription) error {
	for _, path := range []string{s.Queue, s.Topic} {
		if _, err := c.naming.entity(path); err != nil {
			return err
		}
	}
	err := c.manageSubscription(ctx, s)
	if unmanageable(err) {
		err = c.subscribed(ctx, s.Topic, s.Name)
		if errors.Is(plain(err), transport.ErrNoQueue) {
			return fmt.Errorf("asb: subscribe queue %q to %q: there is no subscription %q of topic %q, and the credential has %w: create it by other means, or use a credential that may",
				queue, s.types, s.Name, s.Topic, errManage)
		}
	}
	return wrap(managed(err), "subscribe queue %q to %q by topic %q", queue, s.types, s.Topic)
}

// manageSubscription creates a subscription that forwards to the queue, and its rules. Without
// rules it takes all messages.
func (c *conn) manageSubscription(ctx context.Context, s subscription) error {
	p := &admin.SubscriptionProperties{
		LockDuration:            new(duration(defaultLock)),
		MaxDeliveryCount:        new(int32(math.MaxInt32)), // of forwarding
		ForwardTo:               &s.Queue,
		EnableBatchedOperations: new(true),
		EnableDeadLetteringOnFilterEvaluationExceptions: new(false),
	}
	if len(s.Rules) > 0 { // else it would take all messages until its rules exist
		p.DefaultRule = &admin.RuleProperties{Name: s.Rules[0], Filter: filterOf(s.types[0])}
	}
	found, err := ensure(ctx, c, &p.MaxDeliveryCount, nil,
		func() (*admin.GetSubscriptionResponse, error) { return c.findSubscription(ctx, s.Subscription) },
		func() (r admin.CreateSubscriptionResponse, err error) {
			if err = c.installTopic(ctx, s.Topic); err != nil { // a queue may be subscribed before the first publish
				return r, err
			}
			return c.admin.CreateSubscription(ctx, s.Topic, s.Name, &admin.CreateSubscriptionOptions{Properties: p})
		})
	if err != nil {
		return err
	}
	if err := c.knowTopic(c.naming.path(s.Topic)); err != nil {
		return err
	}
	if found != nil && !forwardsTo(valueOr(found.ForwardTo, ""), s.Queue) {
		c.log.WarnContext(ctx, "a subscription exists that does not forward to the queue, and is used as it is",
			"topic", s.Topic, "subscription", s.Name, "queue", s.Queue)
	}
	for i, rule := range s.Rules {
		_, err := c.admin.CreateRule(ctx, s.Topic, s.Name, &admin.CreateRuleOptions{Name: &rule, Filter: filterOf(s.types[i])})
		if err != nil && status(err) != http.StatusConflict { // the rule exists
			return err
		}
	}
	return nil
}

// findSubscription returns nil if the subscription or its topic does not exist.
func (c *conn) findSubscription(ctx context.Context, s Subscription) (*admin.GetSubscriptionResponse, error) {
	found, err := c.admin.GetSubscription(ctx, s.Topic, s.Name, nil)
	return found, unlessMissing(err)
}

// filterOf returns the filter of the rule for a type.
func filterOf(kind string) admin.RuleFilter {
	return &admin.CorrelationFilter{ApplicationProperties: map[string]any{kind: true}}
}

// forwardsTo reports whether to, a path or the administration's URL of one, is a queue.
func forwardsTo(to, queue string) bool {
	if _, host, ok := strings.Cut(to, "://"); ok {
		_, to, _ = strings.Cut(host, "/")
	}
	return strings.EqualFold(strings.TrimSuffix(to, "/"), queue)
}

// Unsubscribe implements [transport.Subscriber].
func (c *conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	ctx, cancel := joined(ctx, c.ctx)
	defer cancel()
	for _, s := range c.ns.subscriptions(queue, types) {
		if _, err := c.naming.entity(s.Topic); err != nil {
			return err
		}
		if err := c.unsubscribe(ctx, s); err != nil {
			return c.orClosed(wrap(managed(err), "unsubscribe queue %q from %q by topic %q", queue, s.types, s.Topic))
		}
	}
	return nil
}

func (c *conn) unsubscribe(ctx context.Context, s subscription) error {
	if len(s.Rules) == 0 {
		_, err := c.admin.DeleteSubscription(ctx, s.Topic, s.Name, nil)
		return unlessMissing(err)
	}
	for _, rule := range s.Rules {
		_, err := c.admin.DeleteRule(ctx, s.Topic, s.Name, rule, nil)
		if err := unlessMissing(err); err != nil {
			return err
		}
	}
	return nil
}

func unlessMissing(err error) error {
	if status(err) == http.StatusNotFound {
		return nil
	}
	return err
}
