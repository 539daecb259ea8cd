package rabbitmq

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// An event and the queue of its name have exchanges of their own, also where older versions had one
// for both.
func TestEventsDoNotReachTheQueueOfTheirName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"payment", "error"} {
		v := newVersions(t)
		v.b.subscriber("old", name) // by an older version
		plan := transport.Plan{
			Queues: []transport.Queue{{Name: "payment"}, {Name: "error", Shared: true}, {Name: "new"}}, Types: [][]string{{name}},
		}
		v.must(v.c.Install(t.Context(), plan))
		v.must(v.c.Subscribe(t.Context(), "new", []string{name}))
		v.must(v.publish(10, name))
		v.got(name, "payment", 0)
		v.got(name, "error", 0)
		v.got(name, "new", 10)
		v.b.route(name, "") // what NServiceBus sends to the queue
		v.got(name, name, 1)
		v.got(name, "new", 10)
	}
}

// Bindings that were made before a queue had the name of the event end with the next Install.
func TestAYoungerQueueEndsTheBindingsOfItsName(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	v.b.declare("payment")
	plan := transport.Plan{Types: [][]string{{"payment"}}}
	v.must(v.c.Install(t.Context(), plan))
	v.must(v.c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "payment"}}}))
	v.must(v.c.Install(t.Context(), plan))
	v.must(v.publish(1, "payment"))
	v.got("younger", "payment", 0)
}

func TestInstallRefusesNamesOfTwoThings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		queues []transport.Queue
		event  string
		want   string
	}{
		{[]transport.Queue{{Name: "Shop:Placed"}}, "Shop.Placed", `Shop.Placed is that of the queue "Shop:Placed"`},
		{[]transport.Queue{{Name: "sales"}, {Name: ":payment", Shared: true}}, "payment", `that of the queue ":payment"`},
		{[]transport.Queue{{Name: "test"}, {Name: "test.dead-letters", Shared: true}}, "payment", "dead-letter queue"},
		{[]transport.Queue{{Name: "payment"}, {Name: "payment.dead-letters", Shared: true}}, "payment", ""},
	} {
		v := newVersions(t)
		err := v.c.Install(t.Context(), transport.Plan{Queues: test.queues, Types: [][]string{{"Shop.Other", test.event}}})
		if test.want == "" {
			v.must(err)
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, event %s: %v; want %q", test.queues, test.event, err, test.want)
		}
		if test.want != "" && len(v.b.queues) > 0 {
			t.Errorf("%v, event %s: queues %v were created", test.queues, test.event, v.b.queues)
		}
	}
}
