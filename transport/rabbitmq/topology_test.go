package rabbitmq_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

func publish1(m *transport.Message, types ...string) transport.Operation {
	return transport.Operation{Types: types, Message: m}
}

// topologies are those that tests of publishing run on.
var topologies = map[string]func(*rabbitmq.Transport){
	"conventional": nil,
	"direct":       func(tr *rabbitmq.Transport) { tr.Topology = rabbitmq.Direct },
	"direct through an exchange of its own": func(tr *rabbitmq.Transport) {
		tr.Topology, tr.TopicExchange = rabbitmq.Direct, "shop.events"
	},
}

// A publish reaches each subscriber of its type and its base types once.
func TestPublishReachesSubscribersOnce(t *testing.T) {
	t.Parallel()
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) { publishToTypes(t, topology) })
	}
}

func publishToTypes(t *testing.T, topology func(*rabbitmq.Transport)) {
	c := open(t, brokertest.RabbitMQ(t), topology)
	concrete, base, other := brokertest.Name(t, "Shop.OrderPlaced"), brokertest.Name(t, "Shop.IOrderEvent"), brokertest.Name(t, "Shop.IAuditable")
	billing, shipping, audit := install(t, c, "billing"), install(t, c, "shipping"), install(t, c, "audit")
	s := c.(transport.Subscriber)
	must(t, s.Subscribe(within(t), billing, []string{concrete, base, other}))
	must(t, s.Subscribe(within(t), billing, []string{concrete}))
	must(t, s.Subscribe(within(t), shipping, []string{base}))
	must(t, s.Subscribe(within(t), audit, []string{other}))

	must(t, dispatch(c, publish1(message("all", "x"), concrete, base, other)))
	must(t, dispatch(c, publish1(message("base", "x"), base)))
	for queue, want := range map[string][]string{billing: {"all", "base"}, shipping: {"all", "base"}, audit: {"all"}} {
		r := receive(t, c, queue, 10)
		for _, id := range want {
			d := next(t, r)
			if got := d.Message().ID; got != id {
				t.Errorf("%s received %q, want %q", queue, got, id)
			}
			must(t, d.Complete(t.Context()))
		}
		nothing(t, r)
		must(t, r.Close())
	}

	must(t, s.Unsubscribe(within(t), billing, []string{concrete, base, other, brokertest.Name(t, "Shop.Unknown")}))
	must(t, dispatch(c, publish1(message("late", "x"), concrete, base, other)))
	nothing(t, receive(t, c, billing, 10))
	must(t, next(t, receive(t, c, shipping, 10)).Complete(t.Context()))
}

func TestAPublishWithoutSubscribersIsAccepted(t *testing.T) {
	t.Parallel()
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			c := open(t, brokertest.RabbitMQ(t), topology)
			name := brokertest.Name(t, "Shop.OrderPlaced")
			must(t, dispatch(c, publish1(message("a", "x"), name), publish1(message("b", "x"), name)))
		})
	}
}

func TestADelayedPublishReachesTheSubscribers(t *testing.T) {
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, brokertest.RabbitMQ(t), topology)
			billing := install(t, c, "billing")
			must(t, c.(transport.Subscriber).Subscribe(within(t), billing, []string{"Shop.IOrderEvent"}))
			op := publish1(message("later", "x"), "Shop.OrderPlaced", "Shop.IOrderEvent")
			op.After = time.Second
			must(t, dispatch(c, op))
			if got := next(t, receive(t, c, billing, 1)).Message().ID; got != "later" {
				t.Errorf("received %q", got)
			}
		})
	}
}

// The keys are those of NServiceBus's direct topology, so that its endpoints and ours receive each
// other's messages.
func TestTheKeysOfTheDirectTopologyAreThoseOfOthers(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, topologies["direct"])
	raw := rawChannel(t, url)
	q, err := raw.QueueDeclare("net", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.QueueBind(q.Name, "Shop-IOrderEvent.Shop-OrderPlaced.#", "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	must(t, dispatch(c, publish1(message("ours", "x"), "Shop.OrderPlaced", "Shop.IOrderEvent")))
	later := publish1(message("later", "x"), "Shop.OrderPlaced", "Shop.IOrderEvent")
	later.After = time.Second
	must(t, dispatch(c, later))
	net := receive(t, c, q.Name, 2)
	for _, want := range []string{"ours", "later"} {
		got := next(t, net).Message()
		if got.ID != want {
			t.Errorf("received %q, want %q", got.ID, want)
		}
		if _, ok := got.Headers.Lookup("BCC"); ok {
			t.Error("the message has a header of its way")
		}
	}
	nothing(t, net)

	billing := install(t, c, "billing")
	must(t, c.(transport.Subscriber).Subscribe(within(t), billing, []string{"Shop.OrderPlaced"}))
	for _, key := range []string{"Shop-OrderPlaced", "Shop-IOrderEvent.Shop-OrderPlaced", "Shop-IOrderEvent.Shop-OrderPlaced.Shop-BigOrderPlaced", "Shop-IOrderEvent"} {
		err := raw.PublishWithContext(t.Context(), "amq.topic", key, false, false, amqp.Publishing{MessageId: key, DeliveryMode: amqp.Persistent})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := receive(t, c, billing, 10)
	if all := nextN(t, r, 3); all[2].Message().ID != "Shop-IOrderEvent.Shop-OrderPlaced.Shop-BigOrderPlaced" {
		t.Errorf("received %q last", all[2].Message().ID)
	}
	nothing(t, r)
}

func TestAKeyTooLongIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), topologies["direct"])
	err := dispatch(c, publish1(message("a", "x"), "Shop."+strings.Repeat("x", 150), "Shop."+strings.Repeat("y", 150)), publish1(message("b", "x"), "Shop.Short"))
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 0 || !strings.Contains(err.Error(), "311 bytes") {
		t.Errorf("%v", err)
	}
}

func TestATopologyThatIsNoneIsRefused(t *testing.T) {
	for _, tr := range []rabbitmq.Transport{{Topology: "custom"}, {TopicExchange: "shop.events"}} {
		tr.URL = "amqp://127.0.0.1:1"
		if _, err := tr.Open(t.Context(), transport.Env{}); err == nil || !strings.Contains(err.Error(), "direct") {
			t.Errorf("%v", err)
		}
	}
}

func TestPublishingGoesOnAfterItsExchangeWasDeleted(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	must(t, dispatch(c, publish1(message("a", "x"), "Shop.OrderPlaced")))
	if err := rawChannel(t, url).ExchangeDelete("Shop:OrderPlaced", false, false); err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	for dispatch(c, publish1(message("b", "x"), "Shop.OrderPlaced")) != nil {
		if ctx.Err() != nil {
			t.Fatal("publishing does not recover")
		}
	}
}

// The names and arguments are those of NServiceBus's conventional topology, but for those that
// our own queues have in addition: declaring them again in another way would fail.
func TestTheTopologyIsDeclaredAsOthersDeclareIt(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	plan := transport.Plan{
		Queues: []transport.Queue{{Name: "billing"}, {Name: "error", Shared: true}},
		Types:  [][]string{{"Shop.OrderPlaced", "Shop.IOrderEvent"}, {"Plain"}},
	}
	must(t, c.(transport.Installer).Install(within(t), plan))
	must(t, c.(transport.Installer).Install(within(t), plan))
	raw := rawChannel(t, url)
	for name, args := range map[string]amqp.Table{"billing": ownArguments, "error": {"x-queue-type": "quorum"}} {
		if _, err := raw.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"billing", "error", "Shop:OrderPlaced", "Shop:IOrderEvent", ":Plain"} {
		if err := raw.ExchangeDeclarePassive(name, "fanout", true, false, false, false, nil); err != nil {
			t.Errorf("exchange %q: %v", name, err)
		}
	}
	if err := raw.PublishWithContext(t.Context(), "billing", "", true, false, amqp.Publishing{MessageId: "a"}); err != nil {
		t.Fatal(err)
	}
	if got := next(t, receive(t, c, "billing", 1)).Message().ID; got != "a" {
		t.Errorf("through the endpoint's exchange came %q", got)
	}
}

// ownArguments are those of an endpoint's own quorum queues.
var ownArguments = amqp.Table{
	"x-queue-type":              "quorum",
	"x-delivery-limit":          100,
	"x-dead-letter-exchange":    "",
	"x-dead-letter-routing-key": "test.dead-letters",
	"x-dead-letter-strategy":    "at-least-once",
	"x-overflow":                "reject-publish",
}

func TestAQueueOfAnotherTypeIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	queue := install(t, open(t, url, classic), "orders")
	c := open(t, url, nil)
	r := receive(t, c, queue, 1)
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: queue}}}))
	must(t, dispatch(c, send1(queue, message("a", "x"))))
	must(t, next(t, r).Retry(t.Context()))
	d := next(t, r)
	if a := d.Attempt(); a != (transport.Attempt{N: 2}) {
		t.Errorf("second attempt on a classic queue: %+v", a)
	}
	must(t, d.Complete(t.Context()))
}

func TestTheDifferenceOfAQueueOfAnotherTypeIsItsType(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	raw := rawChannel(t, url)
	for name, args := range map[string]amqp.Table{"classic": nil, "stream": {"x-queue-type": "stream"}} {
		if _, err := raw.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
	}
	var logs lockedBuffer
	c, err := (&rabbitmq.Transport{URL: url}).Open(within(t), transport.Env{Endpoint: "test", Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must(t, c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "classic"}}}))
	if text := logs.String(); !strings.Contains(text, "in the place of 'quorum'") || !strings.Contains(text, "QueueType") {
		t.Errorf("the log says\n%s", text)
	}
	err = c.(transport.Installer).Install(within(t), transport.Plan{Queues: []transport.Queue{{Name: "stream"}}})
	if err == nil || !strings.Contains(err.Error(), "it is a stream") {
		t.Errorf("a stream: %v", err)
	}
}

func TestInspectCountsReadyMessages(t *testing.T) {
	t.Parallel()
	c := open(t, brokertest.RabbitMQ(t), nil)
	queue := install(t, c, "orders")
	fill(t, c, queue, 3)
	stats, err := c.(transport.Inspector).Inspect(within(t), queue)
	if err != nil || len(stats) != 1 || stats[0].Ready != 3 || stats[0].Name != queue {
		t.Errorf("inspect: %+v, %v", stats, err)
	}
	if _, err := c.(transport.Inspector).Inspect(within(t), queue, brokertest.Name(t, "absent")); err == nil {
		t.Error("inspecting a missing queue succeeded")
	}
}

func TestACountedQueueIsAlwaysQuorum(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, classic)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "orders"}, {Name: "orders.quarantine", Counted: true}}}
	must(t, c.(transport.Installer).Install(within(t), plan))
	raw := rawChannel(t, url)
	for name, args := range map[string]amqp.Table{"orders": nil, "orders.quarantine": ownArguments} {
		if _, err := raw.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Errorf("queue %q: %v", name, err)
		}
	}
}

// A delayed event that a shovel copies reaches our subscribers. A shovel and a federated exchange
// publish a message with the routing key that they received it with, and the broker has taken the
// header BCC out of it.
func TestShovelledDelayedEvent(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, topologies["direct"])
	raw := rawChannel(t, url)
	const copies = "copies"
	must(t, raw.ExchangeDeclare(copies, amqp.ExchangeTopic, true, false, false, false, nil))
	for _, bind := range []struct{ queue, key, exchange string }{
		{"shovelled", "#.Shop-OrderPlaced.#", "amq.topic"},
		{"ours", "#.Shop-IOrderEvent.#", copies},
		{"theirs", "Shop-IOrderEvent.Shop-OrderPlaced.#", copies},
	} {
		if _, err := raw.QueueDeclare(bind.queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		must(t, raw.QueueBind(bind.queue, bind.key, bind.exchange, false, nil))
	}
	event := publish1(message("m", "x"), "Shop.OrderPlaced", "Shop.IOrderEvent")
	event.After = time.Second
	must(t, dispatch(c, event))
	in, err := raw.Consume("shovelled", "", true, false, false, false, nil)
	must(t, err)
	var d amqp.Delivery
	select {
	case d = <-in:
	case <-within(t).Done():
		t.Fatal("the event did not arrive")
	}
	for _, m := range []struct{ id, key string }{{"copy", d.RoutingKey}, {"whole key", "Shop-IOrderEvent.Shop-OrderPlaced"}} {
		must(t, raw.PublishWithContext(t.Context(), copies, m.key, false, false, amqp.Publishing{
			Headers: d.Headers, MessageId: m.id, Body: d.Body, DeliveryMode: amqp.Persistent,
		}))
	}
	// NServiceBus binds the whole key, which the copy does not have.
	for queue, want := range map[string]string{"ours": "copy", "theirs": "whole key"} {
		got, err := raw.Consume(queue, "", true, false, false, false, nil)
		must(t, err)
		select {
		case d := <-got:
			if d.MessageId != want {
				t.Errorf("%s: received %q first, want %q", queue, d.MessageId, want)
			}
		case <-within(t).Done():
			t.Fatalf("%s: nothing arrived", queue)
		}
	}
}
