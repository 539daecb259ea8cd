package asb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// Subscribe implements [transport.Subscriber]: on each topic of the types it creates a subscription that forwards to
// the queue, and on shared topics a rule for each type. Without the right to manage the namespace it fails unless the
// subscriptions exist.
func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	return c.orClosed(c.subscribeAll(ctx, queue, c.config.Topology.byRoute(types)))
}

func (c *conn) subscribeAll(ctx context.Context, queue string, byRoute map[route][]string) error {
	ctx, cancel := c.until(ctx)
	defer cancel()
	for _, to := range slices.SortedFunc(maps.Keys(byRoute), func(a, b route) int { return strings.Compare(a.topic, b.topic) }) {
		if err := c.subscribe(ctx, queue, to, byRoute[to]); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) subscribe(ctx context.Context, queue string, to route, types []string) error {
	path, err := c.naming.entity(queue)
	if err != nil {
		return err
	}
	topic, err := c.naming.entity(to.topic)
	if err != nil {
		return err
	}
	name := c.naming.subscription(queue)
	var rules []admin.RuleProperties
	if to.shared {
		for _, kind := range types {
			rules = append(rules, ruleOf(kind))
		}
	}
	err = c.manageSubscription(ctx, topic, name, path, rules)
	if unmanageable(err) {
		err = c.subscribed(ctx, topic, name)
		if err != nil && errors.Is(plain(err), transport.ErrNoQueue) {
			return fmt.Errorf("asb: subscribe queue %q to %q: there is no subscription %q of topic %q, and the credential has %w: create it by other means, or use a credential that may",
				queue, types, name, topic, errManage)
		}
	}
	return wrap(managed(err), "subscribe queue %q to %q by topic %q", queue, types, topic)
}

func ruleOf(kind string) admin.RuleProperties {
	return admin.RuleProperties{
		Name:   ruleName(kind),
		Filter: &admin.CorrelationFilter{ApplicationProperties: map[string]any{kind: true}},
	}
}

// manageSubscription creates a subscription that forwards to the queue, and its rules. Without rules it takes all
// messages.
func (c *conn) manageSubscription(ctx context.Context, topic, name, queue string, rules []admin.RuleProperties) error {
	found, err := c.admin.GetSubscription(ctx, topic, name, nil)
	if err != nil && status(err) != http.StatusNotFound {
		return err
	}
	if found == nil {
		if err = c.createSubscription(ctx, topic, name, queue, rules); err != nil {
			return err
		}
	} else if to := found.ForwardTo; to == nil || !forwardsTo(*to, queue) {
		c.log.WarnContext(ctx, "a subscription exists that does not forward to the queue, and is used as it is", "topic", topic, "subscription", name, "queue", queue)
	}
	for _, rule := range rules {
		_, err := c.admin.CreateRule(ctx, topic, name, &admin.CreateRuleOptions{Name: &rule.Name, Filter: rule.Filter})
		if err != nil && status(err) != http.StatusConflict { // the rule exists
			return err
		}
	}
	return nil
}

// forwardsTo reports whether to, a path or the administration's URL of one, is a queue.
func forwardsTo(to, queue string) bool {
	if _, host, ok := strings.Cut(to, "://"); ok {
		_, to, _ = strings.Cut(host, "/")
	}
	return strings.EqualFold(strings.TrimSuffix(to, "/"), queue)
}

func (c *conn) createSubscription(ctx context.Context, topic, name, queue string, rules []admin.RuleProperties) error {
	// A queue may be subscribed before the first publish.
	if err := c.installTopic(ctx, strings.TrimPrefix(topic, c.naming.prefix)); err != nil {
		return err
	}
	p := &admin.SubscriptionProperties{
		LockDuration:            new(duration(defaultLock)),
		MaxDeliveryCount:        new(int32(math.MaxInt32)), // of forwarding
		ForwardTo:               &queue,
		EnableBatchedOperations: new(true),
		EnableDeadLetteringOnFilterEvaluationExceptions: new(false),
	}
	if len(rules) > 0 { // else it would take all messages until its rules exist
		p.DefaultRule = &rules[0]
	}
	err := c.withinEmulator(ctx, &p.MaxDeliveryCount, nil, func() error {
		_, err := c.admin.CreateSubscription(ctx, topic, name, &admin.CreateSubscriptionOptions{Properties: p})
		return err
	})
	return c.conflict(ctx, err, func() (bool, error) {
		found, err := c.admin.GetSubscription(ctx, topic, name, nil)
		return found != nil, err
	})
}

// Unsubscribe implements [transport.Subscriber].
func (c *conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	ctx, cancel := c.until(ctx)
	defer cancel()
	name := c.naming.subscription(queue)
	for to, kinds := range c.config.Topology.byRoute(types) {
		topic, err := c.naming.entity(to.topic)
		if err != nil {
			return err
		}
		if err = c.unsubscribe(ctx, topic, name, to.shared, kinds); err != nil {
			return c.orClosed(wrap(managed(err), "unsubscribe queue %q from %q by topic %q", queue, kinds, topic))
		}
	}
	return nil
}

func (c *conn) unsubscribe(ctx context.Context, topic, name string, shared bool, kinds []string) error {
	if !shared {
		_, err := c.admin.DeleteSubscription(ctx, topic, name, nil)
		return unlessMissing(err)
	}
	for _, kind := range kinds {
		_, err := c.admin.DeleteRule(ctx, topic, name, ruleName(kind), nil)
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
