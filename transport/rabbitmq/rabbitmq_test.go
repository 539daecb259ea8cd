package rabbitmq_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// patience bounds every wait in these tests: a test that waits longer hangs.
const patience = 3 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open connects; change, if any, alters the configuration before.
func open(t testing.TB, url string, change func(*rabbitmq.Transport)) transport.Conn {
	t.Helper()
	tr := &rabbitmq.Transport{URL: url}
	if change != nil {
		change(tr)
	}
	c, err := tr.Open(within(t), transport.Env{Endpoint: "test"})
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

func classic(tr *rabbitmq.Transport) { tr.QueueType = rabbitmq.Classic }

func install(t testing.TB, c transport.Conn, name string) string {
	t.Helper()
	name = brokertest.Name(t, name)
	plan := transport.Plan{Queues: []transport.Queue{{Name: name}}}
	if err := c.(transport.Installer).Install(within(t), plan); err != nil {
		t.Fatal(err)
	}
	return name
}

func receive(t testing.TB, c transport.Conn, queue string, window int) transport.Receiver {
	t.Helper()
	r, err := c.OpenReceiver(within(t), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	r.Window(window)
	return r
}

// onBothTypes runs a test on a quorum queue and on a classic one, each on a broker's virtual host
// of its own.
func onBothTypes(t *testing.T, test func(t *testing.T, url string, c transport.Conn, queue string)) {
	t.Helper()
	for _, queueType := range []rabbitmq.QueueType{rabbitmq.Quorum, rabbitmq.Classic} {
		t.Run(string(queueType), func(t *testing.T) {
			url := brokertest.RabbitMQ(t)
			c := open(t, url, func(tr *rabbitmq.Transport) { tr.QueueType = queueType })
			test(t, url, c, install(t, c, "orders"))
		})
	}
}

// next is the next delivery.
func next(t testing.TB, r transport.Receiver) transport.Delivery {
	t.Helper()
	return nextN(t, r, 1)[0]
}

// awaitLoss returns when the receiver has lost its connection. The connection that sends may be
// lost earlier.
func awaitLoss(t testing.TB, r transport.Receiver) {
	t.Helper()
	for ctx := within(t); ; {
		switch ds, err := r.Receive(ctx, 1); {
		case err == nil:
			t.Fatalf("received %d messages over a lost connection", len(ds))
		case ctx.Err() != nil:
			t.Fatalf("the loss of a connection is not noticed: %v", err)
		case !strings.Contains(err.Error(), "paused because nothing can be sent"):
			return
		}
	}
}

// nextN receives n deliveries, over interruptions of the connection.
func nextN(t testing.TB, r transport.Receiver, n int) []transport.Delivery {
	t.Helper()
	ctx := within(t)
	var all []transport.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		if ctx.Err() != nil {
			t.Fatalf("%d of %d deliveries: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// nothing makes sure that no delivery comes.
func nothing(t testing.TB, r transport.Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx, 1); len(ds) > 0 || ctx.Err() == nil {
		t.Fatalf("received %d deliveries, %v; want none", len(ds), err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func send1(queue string, m *transport.Message) transport.Operation {
	return transport.Operation{Queue: queue, Message: m}
}

func dispatch(c transport.Conn, ops ...transport.Operation) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Dispatch(ctx, ops)
	return err
}

func message(id, body string) *transport.Message {
	return &transport.Message{ID: id, Body: []byte(body), Headers: header.New(header.Field{Name: header.MessageID, Value: id})}
}

// sample is a message with the headers that endpoints write.
func sample(size int) *transport.Message {
	m := message("6f1d4c2e-6a53-4a3f-9d3e-0b8b1f8a7c11", strings.Repeat("x", size))
	for _, f := range [][2]string{
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
	} {
		m.Headers.Set(f[0], f[1])
	}
	return m
}

func fill(t testing.TB, c transport.Conn, queue string, n int) {
	t.Helper()
	for at := 0; at < n; at += 500 {
		var ops []transport.Operation
		for i := at; i < min(n, at+500); i++ {
			m := sample(200)
			m.ID = fmt.Sprint("m-", i)
			m.Headers.Set(header.MessageID, m.ID)
			ops = append(ops, send1(queue, m))
		}
		if err := dispatch(c, ops...); err != nil {
			t.Fatal(err)
		}
	}
}
