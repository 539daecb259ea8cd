package rabbitmq_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// dotnet returns a message as an endpoint of NServiceBus.RabbitMQ 9 to 11 publishes it: every
// header as a string in the table, and properties that repeat some of them.
func dotnet(id, enclosed string, more amqp.Table) amqp.Publishing {
	table := amqp.Table{
		"NServiceBus.MessageId":            id,
		"NServiceBus.MessageIntent":        "Send",
		"NServiceBus.CorrelationId":        id,
		"NServiceBus.ConversationId":       "0c8b7f64-5a43-4a7b-8f0e-b21b00f1ae10",
		"NServiceBus.OriginatingMachine":   "NET-1",
		"NServiceBus.OriginatingEndpoint":  "Net.Sales",
		"$.diagnostics.originating.hostid": "9c1185a5c5e9fc54612808977ee8f548",
		"NServiceBus.ReplyToAddress":       "Net.Sales",
		"NServiceBus.ContentType":          "application/json",
		"NServiceBus.EnclosedMessageTypes": enclosed,
		"NServiceBus.Version":              "9.2.0",
		"NServiceBus.TimeSent":             "2026-01-02 03:04:05:678901 Z",
	}
	for name, value := range more {
		table[name] = value
	}
	return amqp.Publishing{
		Headers: table, MessageId: id, CorrelationId: id, ReplyTo: "Net.Sales", ContentType: "application/json",
		Type: "Shop.OrderPlaced, Shop.Contracts", DeliveryMode: amqp.Persistent, Body: []byte(`{"ID":"1"}`),
	}
}

// publishRaw is how other clients publish: the message is with the broker when it returns.
func publishRaw(t *testing.T, ch *amqp.Channel, exchange, key string, p amqp.Publishing) {
	t.Helper()
	confirm, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirm.WaitContext(within(t)); !ok || err != nil {
		t.Fatalf("published: %v, %v", ok, err)
	}
}

func confirming(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	ch := rawChannel(t, url)
	must(t, ch.Confirm(false))
	return ch
}

func TestMessagesOfNServiceBusAreDecoded(t *testing.T) {
	t.Parallel()
	const enclosed = "Shop.OrderPlaced, Shop.Contracts, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;" +
		"Shop.IOrderEvent, Shop.Contracts, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	plan := transport.Plan{Queues: []transport.Queue{{Name: "billing"}, {Name: "error", Shared: true}}}
	must(t, c.(transport.Installer).Install(within(t), plan))
	must(t, c.(transport.Subscriber).Subscribe(within(t), "billing", []string{"Shop.IOrderEvent"}))

	// A publisher of .NET declares the exchanges of its types, bound from the concrete to the base.
	net := confirming(t, url)
	for _, name := range []string{"Shop:OrderPlaced", "Shop:IOrderEvent", "System:Object"} {
		must(t, net.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
	}
	must(t, net.ExchangeBind("System:Object", "", "Shop:OrderPlaced", false, nil))
	must(t, net.ExchangeBind("Shop:IOrderEvent", "", "Shop:OrderPlaced", false, nil))

	event := dotnet("event", enclosed, amqp.Table{"NServiceBus.MessageIntent": "Publish"})
	failed := dotnet("failed", enclosed, amqp.Table{
		"NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException", "NServiceBus.ExceptionInfo.Message": "ünïcode",
		"NServiceBus.FailedQ": "billing", "NServiceBus.TimeOfFailure": "2026-01-02 03:04:06:000000 Z",
	})
	delayed := dotnet("delayed", enclosed, amqp.Table{
		"NServiceBus.Transport.RabbitMQ.DelayInSeconds": int32(3),
		"x-death":             []any{amqp.Table{"queue": "nsb.v2.delay-level-01", "reason": "expired", "count": int64(1)}},
		"x-first-death-queue": "nsb.v2.delay-level-01",
	})
	// Commands go to the exchange of the endpoint, events to that of their type.
	for exchange, p := range map[string]amqp.Publishing{"billing": dotnet("command", enclosed, nil), "Shop:OrderPlaced": event, "error": failed} {
		publishRaw(t, net, exchange, "", p)
	}
	publishRaw(t, net, "billing", "", delayed)

	fromNet := map[string]*transport.Message{}
	for _, d := range nextN(t, receive(t, c, "billing", 10), 3) {
		fromNet[d.Message().ID] = d.Message()
		must(t, d.Complete(t.Context()))
	}
	d := next(t, receive(t, c, "error", 1))
	fromNet[d.Message().ID] = d.Message()
	must(t, d.Complete(t.Context()))

	for _, sent := range []amqp.Publishing{dotnet("command", enclosed, nil), event, failed, delayed} {
		m := fromNet[sent.MessageId]
		if m == nil {
			t.Errorf("%s did not arrive", sent.MessageId)
			continue
		}
		want, got := map[string]string{}, map[string]string{}
		for name, value := range sent.Headers {
			if s, ok := value.(string); ok && name != "x-first-death-queue" {
				want[name] = s
			}
		}
		for name, value := range m.Headers.All() {
			got[name] = value
		}
		if diff := cmp.Diff(want, got); diff != "" || m.Undecodable != nil || string(m.Body) != string(sent.Body) {
			t.Errorf("%s: %v, %s, headers (-want +got):\n%s", sent.MessageId, m.Undecodable, m.Body, diff)
		}
	}
}

// The reference is NServiceBus.RabbitMQ.
func TestMessagesAreEncodedAsNServiceBusExpects(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	net := rawChannel(t, url)
	if _, err := net.QueueDeclare("Net.Shipping", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Net.Shipping", "Shop:OrderPlaced"} {
		must(t, net.ExchangeDeclare(name, "fanout", true, false, false, false, nil))
	}
	must(t, net.QueueBind("Net.Shipping", "", "Net.Shipping", false, nil))
	must(t, net.ExchangeBind("Net.Shipping", "", "Shop:OrderPlaced", false, nil))

	m := sample(10)
	m.Headers.Set(header.EnclosedMessageTypes, "Shop.OrderPlaced;Shop.IOrderEvent")
	limited := send1("Net.Shipping", m)
	limited.TTL = time.Hour
	must(t, dispatch(c, limited, publish1(m, "Shop.OrderPlaced", "Shop.IOrderEvent")))
	for _, expiration := range []string{"3600000", ""} {
		got, ok, err := net.Get("Net.Shipping", true)
		for ctx := within(t); !ok && err == nil && ctx.Err() == nil; {
			got, ok, err = net.Get("Net.Shipping", true)
		}
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		delete(got.Headers, "x-delivery-count") // the broker's
		table := amqp.Table{}
		for name, value := range m.Headers.All() {
			table[name] = value
		}
		want := amqp.Publishing{
			Headers: table, MessageId: m.ID, CorrelationId: m.Headers.Get(header.CorrelationID), ReplyTo: "sales",
			ContentType: "application/json", Type: "Shop.OrderPlaced", DeliveryMode: amqp.Persistent, Expiration: expiration, Body: m.Body,
		}
		seen := amqp.Publishing{
			Headers: got.Headers, MessageId: got.MessageId, CorrelationId: got.CorrelationId, ReplyTo: got.ReplyTo,
			ContentType: got.ContentType, Type: got.Type, DeliveryMode: got.DeliveryMode, Expiration: got.Expiration, Body: got.Body,
			Priority: got.Priority, AppId: got.AppId, UserId: got.UserId, ContentEncoding: got.ContentEncoding, Timestamp: got.Timestamp,
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("on the wire (-want +got):\n%s", diff)
		}
	}
}

func TestMessagesOfOtherProducersAreTranslated(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, func(tr *rabbitmq.Transport) {
		tr.Translate = func(m *transport.Message) {
			if m.ID == "" || transport.IsContentID(m.ID) {
				m.ID = m.Headers.Get("order") + "/" + m.Native[rabbitmq.PropertyRoutingKey]
			}
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
		}
	})
	queue := install(t, c, "orders")
	raw := confirming(t, url)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	publishRaw(t, raw, "", queue, amqp.Publishing{AppId: "legacy", Type: "place", Priority: 4, Timestamp: at, Headers: amqp.Table{"order": int64(7)}})

	m := *nextN(t, receive(t, c, queue, 1), 1)[0].Message()
	c.(transport.Translator).Translation()(&m) // as the endpoint does
	want := map[string]string{"app-id": "legacy", "type": "place", "priority": "4", "timestamp": "2026-01-02T03:04:05Z", "routing-key": queue}
	if diff := cmp.Diff(want, m.Native); diff != "" {
		t.Errorf("native properties (-want +got):\n%s", diff)
	}
	if m.ID != "7/"+queue || m.Headers.Get(header.EnclosedMessageTypes) != "Shop.PlaceOrder" {
		t.Errorf("id %q, type %q", m.ID, m.Headers.Get(header.EnclosedMessageTypes))
	}
}

func TestPropertiesOfAnOperationArriveAsThose(t *testing.T) {
	t.Parallel()
	url := brokertest.RabbitMQ(t)
	c := open(t, url, nil)
	queue := install(t, c, "orders")
	m := message("a", "x")
	op, plain := send1(queue, m), send1(queue, m)
	op.Properties = map[string]string{
		"app-id": "holdfast", "content-encoding": "gzip", "user-id": "guest", "priority": "9", "type": "place",
		"timestamp": "2026-01-02T03:04:05Z", "delivery-mode": "transient", "unknown": "ignored",
	}
	must(t, dispatch(c, op, plain))
	ds := nextN(t, receive(t, c, queue, 2), 2)
	want := map[string]string{
		"app-id": "holdfast", "content-encoding": "gzip", "user-id": "guest", "priority": "9", "timestamp": "2026-01-02T03:04:05Z",
		"delivery-mode": "transient",
	}
	if diff := cmp.Diff(want, ds[0].Message().Native); diff != "" {
		t.Errorf("native properties (-want +got):\n%s", diff)
	}
	if got := ds[1].Message().Native; len(got) > 0 {
		t.Errorf("the neighbour has %v", got)
	}
	for name, value := range map[string]string{"priority": "300", "timestamp": "now", "delivery-mode": "fast", "app-id": string(make([]byte, 256)), "user-id": "other"} {
		op.Properties = map[string]string{name: value}
		err := dispatch(c, plain, op)
		var failed *transport.DispatchError
		if !errors.As(err, &failed) || len(failed.Ops) != 1 || failed.Ops[0].Index != 1 || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
