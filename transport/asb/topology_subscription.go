package asb

import (
	"maps"
	"slices"
	"strings"
)

// Subscription is one that an endpoint has on a topic, by the names that they have in the namespace.
type Subscription struct {
	Topic string
	Name  string
	Queue string   // that it forwards to
	Rules []string // one for each type on a shared topic; none where the subscription takes all
}

// Subscriptions are those that the queue of an endpoint needs for types: what an endpoint makes by itself when it may, and
// somebody else for it when it may not. They are in the order of their topics.
func (t *Transport) Subscriptions(queue string, types ...string) []Subscription {
	naming := newNaming(t)
	byRoute := map[route]*Subscription{}
	for _, kind := range types {
		for _, to := range t.Topology.subscribeTo(kind) {
			s := byRoute[to]
			if s == nil {
				s = &Subscription{Topic: naming.path(to.topic), Name: naming.subscription(queue), Queue: naming.path(queue)}
				byRoute[to] = s
			}
			if name := ruleName(kind); to.shared && !slices.Contains(s.Rules, name) {
				s.Rules = append(s.Rules, name)
			}
		}
	}
	all := make([]Subscription, 0, len(byRoute))
	for s := range maps.Values(byRoute) {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b Subscription) int { return strings.Compare(a.Topic, b.Topic) })
	return all
}
