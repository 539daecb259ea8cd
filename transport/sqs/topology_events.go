package sqs

import (
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// EventTopics selects the topics to which an event with base types is published, and those to which
// its subscribers subscribe. SNS has no hierarchy of topics.
type EventTopics string

const (
	// AllTopics publishes an event to the topic of its type and to those of its base types. A
	// handler of a base type needs a subscription to the topic of that type alone. It is the
	// default.
	AllTopics EventTopics = "all"
	// BothTopics publishes as AllTopics does, and subscribes as ConcreteTopic does. An endpoint has
	// it while publishers change from AllTopics to ConcreteTopic.
	BothTopics EventTopics = "both"
	// ConcreteTopic publishes an event to the topic of its type alone, as NServiceBus does. A
	// handler of a base type needs subscriptions to the topic of that type and to those of all
	// types that derive from it. The endpoint subscribes to the events that are registered in its
	// configuration, except those that are registered WithoutSubscription. It does not get other
	// events.
	ConcreteTopic EventTopics = "concrete"
)

func (e EventTopics) check() error {
	switch e {
	case "", AllTopics, BothTopics, ConcreteTopic:
		return nil
	}
	return fmt.Errorf("sqs: EventTopics %q: use %q, %q or %q", e, AllTopics, BothTopics, ConcreteTopic)
}

// ofPublish returns the types of a published message, the most concrete first, to whose topics it
// is published.
func (e EventTopics) ofPublish(typeNames []string) []string {
	if e == ConcreteTopic {
		return typeNames[:1]
	}
	return typeNames
}

var _ transport.DerivedSubscriber = (*conn)(nil)

// SubscribesDerived implements [transport.DerivedSubscriber].
func (c *conn) SubscribesDerived() bool { return c.cfg.EventTopics != AllTopics }

// maxUnknown bounds the warnings of warnOfUnknown, and the memory of their types.
const maxUnknown = 100

// typeOfQueue is a type to which a queue is subscribed.
type typeOfQueue struct{ queue, name string }

// noteSubscribed records the types to which this connection has subscribed a queue.
func (c *conn) noteSubscribed(queue string, typeNames []string) {
	queue = c.ShortName(queue)
	for _, name := range typeNames {
		c.subscribed.Store(typeOfQueue{queue, name}, struct{}{})
	}
}

// isSubscribed reports whether this connection has subscribed a queue to a type.
func (c *conn) isSubscribed(queue, name string) bool {
	_, ok := c.subscribed.Load(typeOfQueue{c.ShortName(queue), name})
	return ok
}

// warnOfUnknown logs once that an event arrived by the topic of a base type alone. Its publisher
// has AllTopics or BothTopics. After it has changed to ConcreteTopic the event would not arrive.
func (in *inFlight) warnOfUnknown(d *delivery, m *types.Message) {
	c := in.conn
	which, isCopy := text(m, copyAttribute)
	if !isCopy || which == "0" || !c.SubscribesDerived() {
		return
	}
	names := slices.Collect(header.TypeNames(d.message.Headers.Get(header.EnclosedMessageTypes)))
	hasBase := func(name string) bool { return c.isSubscribed(in.queue, name) }
	if len(names) < 2 || hasBase(names[0]) || !slices.ContainsFunc(names[1:], hasBase) {
		return
	}
	unknown := typeOfQueue{in.queue, names[0]}
	if _, noted := c.unknown.Load(unknown); noted || c.unknowns.Add(1) > maxUnknown {
		return
	}
	if _, noted := c.unknown.Swap(unknown, struct{}{}); !noted {
		c.log.Warn("an event arrived by the topic of a base type only, and will not arrive once its publisher has "+
			`EventTopics "concrete": register its type with its base types in this endpoint's configuration`,
			"queue", in.queue, "type", names[0], "bases", names[1:])
	}
}
