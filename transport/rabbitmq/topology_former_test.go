package rabbitmq

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// typeExchanges has the exchanges of types in NServiceBus, Type.Namespace + ":" + Type.Name, and
// those that they had in older versions of this package, where these differ.
var typeExchanges = []struct{ name, exchange, former string }{
	{"Shop.OrderPlaced", "Shop:OrderPlaced", ""},
	{"Shop.Contracts.OrderPlaced", "Shop.Contracts:OrderPlaced", ""},
	{"Shop.Orders+Placed", "Shop:Placed", "Shop:Orders+Placed"},
	{"Shop.Sales.Orders+Events+Placed", "Shop.Sales:Placed", "Shop.Sales:Orders+Events+Placed"},
	{"OrderPlaced", ":OrderPlaced", "OrderPlaced"},
	{"Orders+Placed", ":Placed", "Orders+Placed"},
	{"Shop.Changed`1[[Shop.Order]]", "Shop:Changed`1", "Shop:Changed`1[[Shop.Order]]"},
	{
		"Shop.Changed`2[[Shop.Order, Shop, Version=1.0.0.0],[Shop.Sales+Line, Shop]]", "Shop:Changed`2",
		"Shop:Changed`2[[Shop.Order, Shop, Version=1.0.0.0],[Shop.Sales+Line, Shop]]",
	},
	{"Shop.Orders`1+Placed[[Shop.Order]]", "Shop:Placed", "Shop:Orders`1+Placed[[Shop.Order]]"},
	{"Changed`1[[Shop.Order]]", ":Changed`1", "Changed`1[[Shop.Order]]"},
}

func TestTypeExchangesAreThoseOfNServiceBus(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/mixed-systems.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range typeExchanges {
		if got := typeExchange(test.name); got != test.exchange {
			t.Errorf("%q: %q, want %q", test.name, got, test.exchange)
		}
		if got := formerExchange(test.name); got != test.former {
			t.Errorf("%q in older versions: %q, want %q", test.name, got, test.former)
		}
		if strings.ContainsAny(test.name, "`,") {
			continue
		}
		if row := fmt.Sprintf("| `%s` | `%s` |", test.name, test.exchange); !strings.Contains(string(doc), row) {
			t.Errorf("mixed-systems.md has no row %s", row)
		}
	}
}

// versions has a conn, and the clients of a landscape that has events of one renamed type.
type versions struct {
	t *testing.T
	c *conn
	b *standInTopology
}

func newVersions(t *testing.T) versions {
	t.Helper()
	broker := newStandIn(t)
	broker.topology = newStandInTopology()
	return versions{t, opened(t, broker.url), broker.topology}
}

func (v versions) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

// publish publishes n events by this version.
func (v versions) publish(n int, types ...string) error {
	for i := range n {
		m := &transport.Message{ID: fmt.Sprint("m-", i), Body: []byte("x")}
		if _, err := v.c.Dispatch(v.t.Context(), []transport.Operation{{Types: types, Message: m}}); err != nil {
			return err
		}
	}
	return nil
}

// got checks how many copies a queue has got.
func (v versions) got(when, queue string, want int) {
	v.t.Helper()
	if n := v.b.count(queue); n != want {
		v.t.Errorf("%s: queue %q got %d messages, want %d", when, queue, n, want)
	}
}

// Each subscriber gets each event once: that of an older version, one that was upgraded, a new one,
// one of NServiceBus, and those of a base type.
func TestEventsCrossBetweenVersions(t *testing.T) {
	t.Parallel()
	const base, presentBase, formerBase = "Shop.Events+IEvent", "Shop:IEvent", "Shop:Events+IEvent"
	for _, test := range typeExchanges {
		if test.former == "" {
			continue
		}
		types := []string{test.name, base}
		for prepared, prepare := range map[string]func(v versions) error{
			"install": func(v versions) error {
				return v.c.Install(t.Context(), transport.Plan{Types: [][]string{types}})
			},
			"publish": func(v versions) error {
				return v.publish(1, types...)
			},
			"delay": func(v versions) error {
				_, err := v.c.sending.delays.bindDelay(t.Context(), v.c.sending.delays.typeTarget(types))
				return err
			},
			"subscribe": func(v versions) error {
				for _, name := range types {
					if err := v.c.Subscribe(t.Context(), "upgraded", []string{name}); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			v := newVersions(t)
			v.b.declare(test.former)
			v.b.declare(formerBase, test.former)
			v.b.subscriber("old", test.former)
			v.b.subscriber("upgraded", test.former)
			v.b.subscriber("net", test.exchange)
			v.b.subscriber("old base", formerBase)
			v.b.subscriber("net base", presentBase)
			v.must(v.c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "new"}}}))
			v.must(prepare(v))
			want := v.b.count("old")
			for range 5 {
				v.b.route(test.former, "") // by an older version
				v.b.route(test.exchange, "")
			}
			for _, queue := range []string{"old", "upgraded", "net", "old base", "net base"} {
				v.got(prepared, queue, want+10)
			}
			for _, queue := range []string{"new", "upgraded"} {
				v.must(v.c.Subscribe(t.Context(), queue, []string{test.name}))
			}
			v.must(v.publish(5, types...))
			v.b.route(test.former, "")
			for _, queue := range []string{"old", "upgraded", "net", "old base", "net base"} {
				v.got(prepared, queue, want+16)
			}
			v.got(prepared, "new", 6)
			v.must(v.c.Unsubscribe(t.Context(), "upgraded", types))
			v.b.route(test.former, "")
			v.must(v.publish(1, types...))
			v.got(prepared, "upgraded", want+16)
			v.got(prepared, "new", 8)
		}
	}
}

// A delayed publish of an older version is due after the upgrade.
func TestOlderDelayedPublishesReachSubscribers(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	const name, former = "Shop.Orders+Placed", "Shop:Orders+Placed"
	v.b.declare(former)
	v.must(v.c.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "new"}}, Delays: true}))
	v.must(v.c.onChannel(t.Context(), func(ch *amqp.Channel) error {
		key := delays.Arrives(relayedDestination + typeDestination + former)
		return ch.ExchangeBind(former, key, delayDeliveries, false, nil)
	}))
	v.must(transport.Subscriber(v.c).Subscribe(t.Context(), "new", []string{name}))
	v.b.route(delayDeliveries, delays.Key(1, relayedDestination+typeDestination+former))
	v.got("older", "new", 1)

	_, err := v.c.sending.delays.bindDelay(t.Context(), v.c.sending.delays.typeTarget([]string{name}))
	v.must(err)
	v.b.route(delayDeliveries, delays.Key(1, relayedDestination+typeDestination+"Shop:Placed"))
	v.got("present", "new", 2)
}

// Where no older version ran, nothing is added for it.
func TestOnlyOlderVersionsMakeFormerExchanges(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	for _, test := range typeExchanges {
		v.must(v.c.Install(t.Context(), transport.Plan{Types: [][]string{{test.name}}}))
		v.must(v.publish(1, test.name))
	}
	for name := range v.b.exchanges {
		if !slices.ContainsFunc(typeExchanges, func(e struct{ name, exchange, former string }) bool { return e.exchange == name }) {
			t.Errorf("exchange %q was declared", name)
		}
	}
	if len(v.b.bindings) > 0 {
		t.Errorf("bindings %v", v.b.bindings)
	}
}

// A refusal to bind former exchanges ends neither Install nor a publish.
func TestFormerExchangesNeedNoRights(t *testing.T) {
	t.Parallel()
	v := newVersions(t)
	v.b.declare("Shop:Orders+Placed")
	v.b.refuse = func(request uint32, _ string) (uint16, string) {
		if request == exchangeBind {
			return 403, "ACCESS_REFUSED - access to exchange 'Shop:Orders+Placed' refused"
		}
		return 0, ""
	}
	v.must(v.c.Install(t.Context(), transport.Plan{Types: [][]string{{"Shop.Orders+Placed"}}}))
	v.must(v.publish(1, "Shop.Orders+Placed"))
}
