package asb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/transport"
)

// subscriptions is the part of a conn with the subscriptions of queues.
type subscriptions struct {
	*core
	senders   *senders
	installer *installer
}

// SubscribesDerived implements [transport.DerivedSubscriber].
func (su *subscriptions) SubscribesDerived() bool { return su.ns.Topology.NoHierarchies }

// Subscribe implements [transport.Subscriber]: on each topic of the types it creates a subscription
// that forwards to the queue, and on shared topics a rule for each type. Without the right to
// manage the namespace it fails unless the subscriptions exist.
func (su *subscriptions) Subscribe(ctx context.Context, queue string, types []string) error {
	ctx, cancel := joined(ctx, su.ctx)
	defer cancel()
	for _, s := range su.ns.subscriptions(queue, types) {
		if err := su.subscribe(ctx, queue, s); err != nil {
			return su.orClosed(err)
		}
	}
	return nil
}

func (su *subscriptions) subscribe(ctx context.Context, queue string, s subscription) error {
	for _, path := range []string{s.Queue, s.Topic} {
		if _, err := su.naming.entity(path); err != nil {
			return err
		}
	}
	err := su.manageSubscription(ctx, s)
	if unmanageable(err) {
		err = su.subscribed(ctx, s.Topic, s.Name)
		if errors.Is(plain(err), transport.ErrNoQueue) {
			return fmt.Errorf("asb: subscribe queue %q to %q: there is no subscription %q of topic %q, and the credential has %w: create it by other means, or use a credential that may",
				queue, s.types, s.Name, s.Topic, errManage)
		}
	}
	return wrap(managed(err), "subscribe queue %q to %q by topic %q", queue, s.types, s.Topic)
}

// manageSubscription creates a subscription that forwards to the queue, and its rules. Without
// rules it takes all messages.
func (su *subscriptions) manageSubscription(ctx context.Context, s subscription) error {
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
	found, err := ensure(ctx, su.core, &p.MaxDeliveryCount, nil,
		func() (*admin.GetSubscriptionResponse, error) { return su.findSubscription(ctx, s.Subscription) },
		func() (r admin.CreateSubscriptionResponse, err error) {
			if err = su.installer.installTopic(ctx, s.Topic); err != nil { // a queue may be subscribed before the first publish
				return r, err
			}
			return su.admin.CreateSubscription(ctx, s.Topic, s.Name, &admin.CreateSubscriptionOptions{Properties: p})
		})
	if err != nil {
		return err
	}
	if err := su.senders.knowTopic(su.naming.path(s.Topic)); err != nil {
		return err
	}
	if found != nil && !forwardsTo(valueOr(found.ForwardTo, ""), s.Queue) {
		su.log.WarnContext(ctx, "a subscription exists that does not forward to the queue, and is used as it is",
			"topic", s.Topic, "subscription", s.Name, "queue", s.Queue)
	}
	for i, rule := range s.Rules {
		_, err := su.admin.CreateRule(ctx, s.Topic, s.Name, &admin.CreateRuleOptions{Name: &rule, Filter: filterOf(s.types[i])})
		if err != nil && status(err) != http.StatusConflict { // the rule exists
			return err
		}
	}
	return nil
}

// findSubscription returns nil if the subscription or its topic does not exist.
func (su *subscriptions) findSubscription(
	ctx context.Context, s Subscription,
) (*admin.GetSubscriptionResponse, error) {
	found, err := su.admin.GetSubscription(ctx, s.Topic, s.Name, nil)
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
func (su *subscriptions) Unsubscribe(ctx context.Context, queue string, types []string) error {
	ctx, cancel := joined(ctx, su.ctx)
	defer cancel()
	for _, s := range su.ns.subscriptions(queue, types) {
		if _, err := su.naming.entity(s.Topic); err != nil {
			return err
		}
		if err := su.unsubscribe(ctx, s); err != nil {
			return su.orClosed(wrap(managed(err), "unsubscribe queue %q from %q by topic %q", queue, s.types, s.Topic))
		}
	}
	return nil
}

func (su *subscriptions) unsubscribe(ctx context.Context, s subscription) error {
	if len(s.Rules) == 0 {
		_, err := su.admin.DeleteSubscription(ctx, s.Topic, s.Name, nil)
		return unlessMissing(err)
	}
	for _, rule := range s.Rules {
		_, err := su.admin.DeleteRule(ctx, s.Topic, s.Name, rule, nil)
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

// Subscription is a subscription of an endpoint's queue to a topic, with the names in the
// namespace.
type Subscription struct {
	Topic string
	Name  string
	Queue string   // that it forwards to
	Rules []string // names, one for each type on a shared topic; none if the subscription takes all messages
}

// Subscriptions returns the subscriptions that the queue of an endpoint needs for types, in the
// order of their topics. An endpoint creates them if it has the right to manage the namespace.
func (t *Transport) Subscriptions(queue string, types ...string) (all []Subscription) {
	for _, s := range t.subscriptions(queue, types) {
		all = append(all, s.Subscription)
	}
	return all
}

// subscription is a Subscription to types, in the order of its rules.
type subscription struct {
	Subscription
	types []string
}

func (t *Transport) subscriptions(queue string, types []string) (all []subscription) {
	byRoute := map[route]*subscription{}
	n := newNaming(t)
	for _, kind := range types {
		for _, to := range t.Topology.subscribeTo(kind) {
			s := byRoute[to]
			if s == nil {
				s = &subscription{Subscription: Subscription{Topic: n.path(to.topic), Name: n.subscription(queue), Queue: n.path(queue)}}
				byRoute[to] = s
			}
			if slices.Contains(s.types, kind) {
				continue
			}
			s.types = append(s.types, kind)
			if to.shared {
				s.Rules = append(s.Rules, ruleName(kind))
			}
		}
	}
	for _, s := range byRoute {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b subscription) int { return strings.Compare(a.Topic, b.Topic) })
	return all
}
