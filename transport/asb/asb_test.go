package asb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/asb"
)

// patience bounds each wait for the stand-in: the end of a test that hangs.
const patience = 3 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// on returns the driver on a namespace.
func on(ns *brokertest.ServiceBusNamespace) *asb.Transport {
	return &asb.Transport{ConnectionString: ns.ConnectionString, Administration: ns.Admin}
}

func open(t testing.TB, tr *asb.Transport) transport.Conn {
	t.Helper()
	c, err := tr.Open(within(t), transport.Env{Endpoint: "test", Instance: "instance-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func install(t testing.TB, c transport.Conn, names ...string) {
	t.Helper()
	var plan transport.Plan
	for _, name := range names {
		plan.Queues = append(plan.Queues, transport.Queue{Name: name})
	}
	if err := c.(transport.Installer).Install(within(t), plan); err != nil {
		t.Fatal(err)
	}
}

func subscribe(t testing.TB, c transport.Conn, queue string, types ...string) {
	t.Helper()
	if err := c.(transport.Subscriber).Subscribe(within(t), queue, types); err != nil {
		t.Fatal(err)
	}
}

func receive(t testing.TB, c transport.Conn, queue string) transport.Receiver {
	t.Helper()
	r, err := c.OpenReceiver(within(t), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// next receives a delivery.
func next(t testing.TB, r transport.Receiver) transport.Delivery {
	t.Helper()
	return nextN(t, r, 1)[0]
}

// nextN receives n deliveries, over interruptions of the connection.
func nextN(t testing.TB, r transport.Receiver, n int) (all []transport.Delivery) {
	t.Helper()
	ctx := within(t)
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		if ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// nothing fails the test if a delivery comes.
func nothing(t testing.TB, r transport.Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx, 1); len(ds) > 0 || ctx.Err() == nil {
		t.Fatalf("received %d deliveries, %v; want none", len(ds), err)
	}
}

func idsOf(ds []transport.Delivery) (ids []string) {
	for _, d := range ds {
		ids = append(ids, d.Message().ID)
	}
	return ids
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func to(queue, id string) transport.Operation {
	return transport.Operation{Queue: queue, Message: message(id, "body of "+id)}
}

func message(id, body string) *transport.Message {
	return &transport.Message{ID: id, Body: []byte(body), Headers: header.New(header.Field{Name: header.MessageID, Value: id})}
}

func dispatch(t testing.TB, c transport.Conn, ops ...transport.Operation) []transport.Receipt {
	t.Helper()
	receipts, err := c.Dispatch(within(t), ops)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

// sample returns a message with the headers that endpoints write.
func sample(size int) *transport.Message {
	m := message("6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11", strings.Repeat("x", size))
	for _, f := range sampleHeaders {
		m.Headers.Set(f[0], f[1])
	}
	return m
}

var sampleHeaders = [][2]string{
	{header.CorrelationID, "6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11"},
	{header.ConversationID, "0c8b7f64-5a43-4a7b-8f0e-3f1b2a9d8c77"},
	{header.RelatedTo, "5d3b8a90-1c4e-4f6a-b2d1-7e9f0a1b2c3d"},
	{header.MessageIntent, header.IntentSend},
	{header.ReplyToAddress, "sales"},
	{header.OriginatingEndpoint, "sales"},
	{header.OriginatingMachine, "host-1.example"},
	{header.OriginatingHostID, "9c1185a5c5e9fc54612808977ee8f548"},
	{header.ContentType, "application/json"},
	{header.EnclosedMessageTypes, "Shop.Contracts.OrderPlaced"},
	{header.TimeSent, "2026-01-02 03:04:05:678901 Z"},
	{header.Version, "10.0.0"},
	{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
}

func fill(t testing.TB, c transport.Conn, queue string, n int) {
	t.Helper()
	for at := 0; at < n; at += 500 {
		var ops []transport.Operation
		for i := at; i < min(n, at+500); i++ {
			m := sample(200)
			m.ID = fmt.Sprint("m-", i)
			m.Headers.Set(header.MessageID, m.ID)
			ops = append(ops, transport.Operation{Queue: queue, Message: m})
		}
		dispatch(t, c, ops...)
	}
}

// rawClient returns a client of the library.
func rawClient(t testing.TB, ns *brokertest.ServiceBusNamespace) *azservicebus.Client {
	t.Helper()
	c, err := azservicebus.NewClientFromConnectionString(ns.ConnectionString, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(within(t)) })
	return c
}

func rawSender(t testing.TB, ns *brokertest.ServiceBusNamespace, entity string) *azservicebus.Sender {
	t.Helper()
	s, err := rawClient(t, ns).NewSender(entity, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rawReceiver(t testing.TB, ns *brokertest.ServiceBusNamespace, queue string) *azservicebus.Receiver {
	t.Helper()
	r, err := rawClient(t, ns).NewReceiverForQueue(queue, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
