package asb

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Topology chooses the topics of events. An event without base types is published to the topic of
// its full name, as in NServiceBus's topology of a topic per event. One with base types is
// published to a shared topic: there each message has a property for each of its types, and a
// subscription has a rule for each type, so that a subscriber to a base type receives the event
// once.
//
// The tables map single types to other topics, as NServiceBus's do. Publishers and subscribers of a
// type have to agree.
type Topology struct {
	// HierarchyTopic is the topic that events with base types share: "holdfast.hierarchies" unless
	// set.
	HierarchyTopic string
	// NoHierarchies ignores base types, as NServiceBus does: every event is published to the topic
	// of its own name. An endpoint that handles a base type subscribes to the topics of that type
	// and of the events in its configuration that derive from it.
	NoHierarchies bool
	// PublishTo maps types, by their wire names, to topics. SubscribeTo has the same topics unless
	// it has others.
	PublishTo map[string]string
	// SubscribeTo maps types to the topics of their subscriptions.
	SubscribeTo map[string][]string
	// Shared are the mapped topics with several types. As on the HierarchyTopic, messages have a
	// property for each of their types, and subscriptions have rules: NServiceBus's correlation
	// filter mode.
	Shared []string
	// Subscriptions maps queues to the names of their subscriptions: the queue's own unless set.
	// One over 50 characters is cut, and ends in a hash of the whole.
	Subscriptions map[string]string
}

const defaultHierarchyTopic = "holdfast.hierarchies"

// route is a topic, and whether rules distinguish types there.
type route struct {
	topic  string
	shared bool
}

func (y *Topology) check() error {
	topics := append(slices.Concat(slices.Collect(maps.Values(y.SubscribeTo))...), y.Shared...)
	topics = slices.AppendSeq(append(topics, y.hierarchies().topic), maps.Values(y.PublishTo))
	for _, topic := range topics {
		if !validEntity(topic) {
			return fmt.Errorf("asb: topic %.300q: %s", topic, entityRule)
		}
	}
	for queue, name := range y.Subscriptions {
		if len(name) > maxChild || !childForm.MatchString(name) {
			return fmt.Errorf("asb: subscription %.100q of queue %q: it is of letters, digits, dots, hyphens and underscores, at most %d", name, queue, maxChild)
		}
	}
	return nil
}

func (y *Topology) to(topic string) route {
	return route{topic, slices.Contains(y.Shared, topic)}
}

func (y *Topology) hierarchies() route {
	return route{cmp.Or(y.HierarchyTopic, defaultHierarchyTopic), true}
}

// publishTo is where a message of these types, the most concrete first, is published.
func (y *Topology) publishTo(types []string) route {
	switch topic := y.PublishTo[types[0]]; {
	case topic != "":
		return y.to(topic)
	case len(types) > 1 && !y.NoHierarchies:
		return y.hierarchies()
	default:
		return route{topic: topicOf(types[0])}
	}
}

// subscribeTo is where messages of a type, and of those derived from it, come from.
func (y *Topology) subscribeTo(kind string) []route {
	if topics := y.SubscribeTo[kind]; len(topics) > 0 {
		routes := make([]route, len(topics))
		for i, topic := range topics {
			routes[i] = y.to(topic)
		}
		return routes
	}
	if topic := y.PublishTo[kind]; topic != "" {
		return []route{y.to(topic)}
	}
	own := route{topic: topicOf(kind)}
	if y.NoHierarchies {
		return []route{own}
	}
	return []route{own, y.hierarchies()}
}
