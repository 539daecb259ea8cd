package asb_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

func rawAdmin(t testing.TB, ns *brokertest.ServiceBusNamespace) *admin.Client {
	t.Helper()
	c, err := admin.NewClientFromConnectionString(ns.ConnectionString, &admin.ClientOptions{
		ClientOptions: azcore.ClientOptions{Transport: ns.AdminTransport()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func published(id string, types ...string) transport.Operation {
	m := message(id, id)
	m.Headers.Set("NServiceBus.EnclosedMessageTypes", strings.Join(types, ";"))
	return transport.Operation{Types: types, Message: m}
}

func TestQueuesAreCreatedWithAFiniteDeliveryCount(t *testing.T) {
	ns := brokertest.OwnServiceBusOf(t, brokertest.ServiceBusAzure)
	c := open(t, on(ns))
	plan := transport.Plan{
		Queues: []transport.Queue{{Name: "sales"}, {Name: "error", Shared: true}},
		Types:  [][]string{{"Shop.Placed"}, {"Shop.Paid", "Shop.IPayment"}},
	}
	must(t, c.(transport.Installer).Install(within(t), plan))
	raw := rawAdmin(t, ns)
	for name, want := range map[string]string{"sales": "100 PT5M 5120", "error": "2147483647 PT5M 5120"} {
		q, err := raw.GetQueue(within(t), name, nil)
		if err != nil || q == nil {
			t.Fatal(name, err)
		}
		if got := fmt.Sprintln(*q.MaxDeliveryCount, *q.LockDuration, *q.MaxSizeInMegabytes); got != want+"\n" && got != strings.Replace(want, "PT5M", "PT300S", 1)+"\n" {
			t.Errorf("%s has %s, want %s", name, got, want)
		}
	}
	for _, topic := range []string{"Shop.Placed", "holdfast.hierarchies"} {
		if found, err := raw.GetTopic(within(t), topic, nil); found == nil {
			t.Errorf("topic %s: %v", topic, err)
		}
	}
}

func TestSubscriptionsForwardToTheQueue(t *testing.T) {
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	install(t, c, "sales")
	subscribe(t, c, "sales", "Shop.Placed")
	raw := rawAdmin(t, ns)
	for topic, rule := range map[string]string{"Shop.Placed": "$Default", "holdfast.hierarchies": "Shop.Placed"} {
		found, err := raw.GetSubscription(within(t), topic, "sales", nil)
		if err != nil || found == nil {
			t.Fatal(topic, err)
		}
		if found.ForwardTo == nil || !strings.HasSuffix(*found.ForwardTo, "sales") {
			t.Errorf("the subscription of %s forwards to %v", topic, found.ForwardTo)
		}
		if found, err := raw.GetRule(within(t), topic, "sales", rule, nil); found == nil {
			t.Errorf("topic %s has no rule %s: %v", topic, rule, err)
		}
	}
}

func TestAHierarchyKeepsSystemsApart(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	var conns []transport.Conn
	for _, hierarchy := range []string{"", "test", "prod"} {
		tr := on(ns)
		tr.Hierarchy = hierarchy
		c := open(t, tr)
		install(t, c, "sales")
		subscribe(t, c, "sales", "Shop.Placed")
		dispatch(t, c, to("sales", hierarchy+"-1"), published(hierarchy+"-2", "Shop.Placed"), published(hierarchy+"-3", "Shop.Placed", "Shop.IOrder"))
		conns = append(conns, c)
	}
	for i, hierarchy := range []string{"", "test", "prod"} {
		r := receive(t, conns[i], "sales")
		for _, d := range nextN(t, r, 3) {
			if !strings.HasPrefix(d.Message().ID, hierarchy+"-") {
				t.Errorf("%q came to %q", d.Message().ID, hierarchy)
			}
			must(t, d.Complete(within(t)))
		}
		nothing(t, r)
		stats, err := conns[i].(transport.Inspector).Inspect(within(t))
		if i > 0 && (err != nil || len(stats) != 1 || stats[0].Name != "sales") {
			t.Errorf("%q has %+v, %v", hierarchy, stats, err)
		}
	}
}

func TestMappedTypesGoByTheirTopics(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	tr := on(ns)
	tr.Topology = asb.Topology{
		PublishTo:     map[string]string{"Shop.Placed": "orders", "Shop.Cancelled": "orders"},
		SubscribeTo:   map[string][]string{"Shop.IOrder": {"orders"}},
		Shared:        []string{"orders"},
		Subscriptions: map[string]string{"billing": "the-billing"},
	}
	c := open(t, tr)
	install(t, c, "sales", "billing")
	subscribe(t, c, "sales", "Shop.IOrder", "Shop.Placed")
	subscribe(t, c, "billing", "Shop.Cancelled")
	dispatch(t, c, published("placed", "Shop.Placed", "Shop.IOrder"), published("cancelled", "Shop.Cancelled", "Shop.IOrder"))
	for queue, want := range map[string]string{"sales": "[placed cancelled]", "billing": "[cancelled]"} {
		r := receive(t, c, queue)
		ds := nextN(t, r, strings.Count(want, " ")+1)
		if got := fmt.Sprint(idsOf(ds)); got != want {
			t.Errorf("%s got %s, want %s", queue, got, want)
		}
		for _, d := range ds {
			must(t, d.Complete(within(t)))
		}
		nothing(t, r)
	}
	if found, err := rawAdmin(t, ns).GetSubscription(within(t), "orders", "the-billing", nil); found == nil {
		t.Errorf("the subscription has another name: %v", err)
	}
}

func TestAQueueOfALongNameSubscribes(t *testing.T) {
	t.Parallel()
	ns := brokertest.OwnServiceBus(t)
	c := open(t, on(ns))
	long := strings.Repeat("long.", 20) + "queue"
	kind := "Shop.Contracts.Billing.Events.TheOrderOfACustomerWasPlaced"
	install(t, c, long, long+"2")
	subscribe(t, c, long, kind)
	subscribe(t, c, long+"2", kind)
	dispatch(t, c, published("m-1", kind), published("m-2", kind, "Base"))
	for _, queue := range []string{long, long + "2"} {
		r := receive(t, c, queue)
		for _, d := range nextN(t, r, 2) {
			must(t, d.Complete(within(t)))
		}
		nothing(t, r)
	}
}

// An endpoint that handles a base type gets the events that derive from it, once each, also where
// each event has a topic of its own.
func TestABaseTypeGetsDerivedEvents(t *testing.T) {
	type (
		base    struct{ N int }
		derived struct{ N int }
	)
	tr := on(brokertest.OwnServiceBus(t))
	tr.Topology.NoHierarchies = true
	got := make(chan int, 10)
	s := run(t, tr, func(cfg *endpoint.Config) {
		cfg.Messages = append(cfg.Messages,
			endpoint.Event[base]("Shop.IOrder"), endpoint.Event[derived]("Shop.Placed", "Shop.IOrder"))
		cfg.Handlers = append(cfg.Handlers, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m base) error {
			got <- m.N
			return nil
		}))
	}, func(context.Context, *endpoint.Session, job) error { return nil })
	for _, event := range []any{derived{1}, base{2}} {
		if err := s.Publish(within(t), event); err != nil {
			t.Fatal(err)
		}
	}
	all := []int{await(t, "the first event", got), await(t, "the second event", got)}
	slices.Sort(all)
	s.end()
	if !slices.Equal(all, []int{1, 2}) || len(got) > 0 {
		t.Errorf("handled %v and %d more", all, len(got))
	}
}

// Queues and topics share one set of names.
func TestInstallRefusesATopicWithTheNameOfAQueue(t *testing.T) {
	c := open(t, on(brokertest.OwnServiceBus(t)))
	for _, queue := range []transport.Queue{{Name: "payment"}, {Name: "Payment", Shared: true}} {
		plan := transport.Plan{Queues: []transport.Queue{{Name: "sales"}, queue}, Types: [][]string{{"payment"}}}
		err := c.(transport.Installer).Install(within(t), plan)
		if err == nil || !strings.Contains(err.Error(), "has the name of the queue") {
			t.Errorf("queue %q: %v", queue.Name, err)
		}
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: "payment"}}, Types: [][]string{{"Shop.payment"}}}
	if err := c.(transport.Installer).Install(within(t), plan); err != nil {
		t.Error(err)
	}
}

// The queue or the topic of another endpoint may have the name.
func TestInstallRefusesAnEntityOfAnotherKind(t *testing.T) {
	c := open(t, on(brokertest.OwnServiceBus(t)))
	queue := transport.Plan{Queues: []transport.Queue{{Name: "payment"}}}
	topic := transport.Plan{Types: [][]string{{"paid"}}}
	for range 2 {
		for _, plan := range []transport.Plan{queue, topic} {
			if err := c.(transport.Installer).Install(within(t), plan); err != nil {
				t.Error(err)
			}
		}
	}
	queue.Queues[0].Name, topic.Types[0][0] = "paid", "payment"
	for want, plan := range map[string]transport.Plan{`"paid": a topic has that name`: queue, `"payment": a queue has that name`: topic} {
		err := c.(transport.Installer).Install(within(t), plan)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	err := c.(transport.Subscriber).Subscribe(within(t), "payment", []string{"payment"})
	if err == nil || !strings.Contains(err.Error(), "a queue has that name") {
		t.Errorf("Subscribe: %v", err)
	}
}
