package asb

import (
	"slices"
	"strings"
)

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
