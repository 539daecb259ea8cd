package asb

import (
	"slices"
	"strings"
)

// Subscription is a subscription of an endpoint's queue to a topic, with the names in the namespace.
type Subscription struct {
	Topic string
	Name  string
	Queue string   // that it forwards to
	Rules []string // names, one for each type on a shared topic; none if the subscription takes all messages
}

// Subscriptions returns the subscriptions that the queue of an endpoint needs for types, in the order of their topics.
// An endpoint creates them if it has the right to manage the namespace.
func (t *Transport) Subscriptions(queue string, types ...string) []Subscription {
	naming := newNaming(t)
	var all []Subscription
	for to, own := range t.Topology.byRoute(types) {
		s := Subscription{Topic: naming.path(to.topic), Name: naming.subscription(queue), Queue: naming.path(queue)}
		if to.shared {
			for _, kind := range own {
				s.Rules = append(s.Rules, ruleName(kind))
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Subscription) int { return strings.Compare(a.Topic, b.Topic) })
	return all
}
