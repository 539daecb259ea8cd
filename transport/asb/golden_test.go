package asb_test

import (
	"maps"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

// dotnet returns a message of an endpoint of NServiceBus.Transport.AzureServiceBus 4 to 6: every
// header as an application property, properties that repeat some of them, and a native id without
// meaning.
func dotnet(id, enclosed string, more map[string]any) *azservicebus.Message {
	properties := map[string]any{
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
		"NServiceBus.Version":              "10.0.0",
		"NServiceBus.TimeSent":             "2026-01-02 03:04:05:678901 Z",
	}
	maps.Copy(properties, more)
	return &azservicebus.Message{
		ApplicationProperties: properties, MessageID: new("5f7d0a3c-7e55-4b1c-9d3e-2d8f6b1a9c11" + id), CorrelationID: &id,
		ReplyTo: new("Net.Sales"), ContentType: new("application/json"), Body: []byte(`{"ID":"1"}`),
	}
}

func TestMessagesOfNServiceBusAreRead(t *testing.T) {
	t.Parallel()
	const enclosed = "Shop.OrderPlaced, Shop.Contracts, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;" +
		"Shop.IOrderEvent, Shop.Contracts, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
	ns := sharedNamespace(t)
	billing, topic := ns.name(t, "billing"), ns.name(t, "Shop.OrderPlaced")
	c := open(t, ns.transport(t))
	install(t, c, billing)
	subscribe(t, c, billing, topic)

	command := dotnet("command", enclosed, nil)
	legacy := dotnet("old", enclosed, map[string]any{"NServiceBus.Transport.Encoding": "application/octect-stream"})
	event := dotnet("event", enclosed, map[string]any{"NServiceBus.MessageIntent": "Publish"})
	stamped := dotnet("stamped", enclosed, map[string]any{"Shop.OrderPlaced": true, "Shop.IOrderEvent": true}) // in correlation filter mode
	delayed := dotnet("delayed", enclosed, map[string]any{"NServiceBus.Retries": "1", "NServiceBus.Retries.Timestamp": "2026-01-02 03:04:06:000000 Z"})
	delayed.ScheduledEnqueueTime = new(time.Now().Add(100 * time.Millisecond))
	expiring := dotnet("expiring", enclosed, map[string]any{"NServiceBus.TimeToBeReceived": "01:00:00"})
	expiring.TimeToLive = new(time.Hour)
	queue, events := rawSender(t, ns.ServiceBusNamespace, billing), rawSender(t, ns.ServiceBusNamespace, topic)
	sent := map[string]*azservicebus.Message{}
	for _, m := range []*azservicebus.Message{command, legacy, stamped, delayed, expiring} {
		must(t, queue.SendMessage(within(t), m, nil))
		sent[*m.CorrelationID] = m
	}
	must(t, events.SendMessage(within(t), event, nil))
	sent["event"] = event

	for _, d := range nextN(t, receive(t, c, billing), len(sent)) {
		m := d.Message()
		was := sent[m.ID]
		if was == nil {
			t.Errorf("the id is %q", m.ID)
			continue
		}
		want, got := map[string]string{}, maps.Collect(m.Headers.All())
		for name, value := range was.ApplicationProperties {
			if s, ok := value.(string); ok && name != "NServiceBus.Transport.Encoding" {
				want[name] = s
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || m.Undecodable != nil || string(m.Body) != string(was.Body) || len(m.Native) != 0 {
			t.Errorf("%s, native %v, %v (-want +got):\n%s", m.ID, m.Native, m.Undecodable, diff)
		}
		must(t, d.Complete(within(t)))
	}
}

// NServiceBus reads the application properties of a message, all of them texts, the body as one
// section of data, and reply-to and correlation-id.
func TestSentMessagesAreAsNServiceBusReadsThem(t *testing.T) {
	ns := sharedNamespace(t)
	queue := ns.name(t, "net")
	c := open(t, ns.transport(t))
	install(t, c, queue)
	m := sample(10)
	dispatch(t, c, transport.Operation{Queue: queue, Message: m, TTL: time.Hour})
	got, err := rawReceiver(t, ns.ServiceBusNamespace, queue).ReceiveMessages(within(t), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw := got[0]
	want := map[string]any{}
	for name, value := range m.Headers.All() {
		want[name] = value
	}
	if diff := cmp.Diff(want, raw.ApplicationProperties); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(raw.RawAMQPMessage.Body.Data) != 1 || string(raw.Body) != string(m.Body) || raw.MessageID != m.ID || *raw.CorrelationID != m.ID ||
		*raw.ReplyTo != "sales" || *raw.ContentType != "application/json" || *raw.TimeToLive != time.Hour {
		t.Errorf("%+v", raw)
	}
}
