package transporttest

import (
	"strings"

	"github.com/holdfast-go/holdfast/transport"
)

var publishRules = []rule{
	newRule("publish-each", publishEach,
		"A published message arrives once at each subscriber of its type, and at no other queue.", publishing),
	newRule("publish-no-subscriber", publishNoSubscriber, "Publishing a type without subscribers succeeds.", publishing),
	newRule("publish-base", publishBase,
		"A subscriber of a base type receives the messages that are published under that type. A subscriber of a derived "+
			"type does not receive messages that have only the base type.", publishing),
	newRule("publish-one-copy", publishOneCopy,
		"A queue that is subscribed to several types of a message, or several times to one type, receives one "+
			"copy.", publishing),
	newRule("publish-whole", publishWhole,
		"Each copy of a published message has the id, headers and body with which it was published.", publishing),
	newRule("publish-independent", publishIndependent,
		"Copies of a published message are settled and counted separately.", publishing),
	newRule("publish-order", publishOrder,
		"Messages of one type that one Dispatch publishes and sends arrive at a subscriber in order.", publishing),
	newRule("unsubscribe", unsubscribe,
		"After Unsubscribe, no message arrives any more. Unsubscribe without a subscription succeeds.", publishing),
	newRule("subscribe-elsewhere", subscribeElsewhere,
		"A subscription that one connection makes soon applies to messages that other connections publish.", publishing),
	newRule("subscribe-reopened", subscribeReopened,
		"Subscriptions outlive the connection that made them, and messages are kept for a subscriber that is not "+
			"connected.", publishing),
}

// kind returns the wire name of a message type that no other rule uses.
func (t *test) kind(s string) string {
	return t.name("Kit." + s)
}

func (t *test) subscribe(c transport.Conn, queue string, types ...string) {
	t.Helper()
	t.must("Subscribe", as[transport.Subscriber](t, c).Subscribe(t.ctx(), queue, types))
}

// subscriber creates a queue with these subscriptions.
func (t *test) subscriber(c transport.Conn, s string, types ...string) (queue string) {
	t.Helper()
	queue = t.queue(c, s)
	t.subscribe(c, queue, types...)
	return queue
}

func publish(id string, types ...string) transport.Operation {
	m := message(id)
	m.Headers.Set("NServiceBus.EnclosedMessageTypes", strings.Join(types, ";"))
	return transport.Operation{Message: m, Types: types}
}

func publishEach(t *test) {
	c := t.open()
	ordered, billed := t.kind("Ordered"), t.kind("Billed")
	a, b, other := t.subscriber(c, "a", ordered), t.subscriber(c, "b", ordered), t.subscriber(c, "other", billed)
	t.dispatch(c, publish("m-1", ordered), publish("m-2", ordered))
	t.holds(c, a, "m-1", "m-2")
	t.holds(c, b, "m-1", "m-2")
	t.empty(c, other)
}

func publishNoSubscriber(t *test) {
	c, q := t.queueOf(t.open())
	t.dispatch(c, publish("m", t.kind("Ignored"), t.kind("IIgnored")))
	t.empty(c, q)
}

func publishBase(t *test) {
	c := t.open()
	kind, parent := t.kind("Ordered"), t.kind("IEvent")
	base, derived := t.subscriber(c, "base", parent), t.subscriber(c, "derived", kind)
	t.dispatch(c, publish("derived", kind, parent), publish("plain", parent))
	t.holds(c, base, "derived", "plain")
	t.holds(c, derived, "derived")
}

func publishOneCopy(t *test) {
	c := t.open()
	kind, parent := t.kind("Ordered"), t.kind("IEvent")
	q := t.subscriber(c, "in", kind, parent)
	t.subscribe(c, q, kind)
	t.subscribe(c, q, parent)
	t.dispatch(c, publish("both", kind, parent), publish("parent", parent), publish("kind", kind))
	t.holds(c, q, "both", "parent", "kind")
}

func publishWhole(t *test) {
	c, kind := t.open(), t.kind("Ordered")
	a, b := t.subscriber(c, "a", kind), t.subscriber(c, "b", kind)
	op := publish("m", kind)
	t.dispatch(c, op)
	t.complete(t.whole(t.receiver(c, a), op.Message), t.whole(t.receiver(c, b), op.Message))
}

func publishIndependent(t *test) {
	c, kind := t.open(), t.kind("Ordered")
	a, b := t.subscriber(c, "a", kind), t.subscriber(c, "b", kind)
	t.dispatch(c, publish("m", kind))
	t.complete(t.nth(t.receiver(c, a), 1))
	r := t.receiver(c, b)
	for n := 1; n <= 3; n++ {
		t.do("Retry", t.nth(r, n).Retry)
	}
	t.complete(t.one(r, "m"))
	t.empty(c, a)
	t.empty(c, b)
}

func publishOrder(t *test) {
	c, kind := t.open(), t.kind("Ordered")
	q := t.subscriber(c, "in", kind)
	want := ids("m", 40)
	var ops []transport.Operation
	for _, id := range want {
		ops = append(ops, publish(id, kind))
	}
	t.dispatch(c, ops...)
	t.inOrder(t.receiver(c, q), want...)
}

func unsubscribe(t *test) {
	c := t.open()
	kind, kept := t.kind("Ordered"), t.kind("Billed")
	q := t.subscriber(c, "in", kind, kept)
	t.dispatch(c, publish("before", kind))
	for _, types := range [][]string{{kind}, {kind, t.kind("Unknown")}} {
		t.must("Unsubscribe", as[transport.Subscriber](t, c).Unsubscribe(t.ctx(), q, types))
	}
	t.dispatch(c, publish("after", kind), publish("kept", kept))
	t.holds(c, q, "before", "kept")
}

func subscribeElsewhere(t *test) {
	one, q, r := t.receiverOf(t.open())
	two, kind := t.open(), t.kind("Ordered")
	t.dispatch(two, publish("before", kind)) // so that it caches that there is no subscriber
	t.subscribe(one, q, kind)
	came := receiving(t.ctx(), r, 1)
	t.eventually("what another connection publishes arrives", func() bool {
		t.dispatch(two, publish("m", kind))
		select {
		case got := <-came:
			if got.err != nil || got.ds[0].Message().ID != "m" {
				t.Fatalf("received %s and the error %v", idsOf(got.ds), got.err)
			}
			t.complete(got.ds...)
			return true
		default:
			return false
		}
	})
}

func subscribeReopened(t *test) {
	c, kind := t.open(), t.kind("Ordered")
	q := t.subscriber(c, "in", kind)
	c = t.reopen(c)
	t.dispatch(c, publish("m", kind))
	t.holds(t.reopen(c), q, "m")
}
