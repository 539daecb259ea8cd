package inmemory_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// open connects to t's broker, with the queues made.
func open(tb testing.TB, t *inmemory.Transport, queues ...string) transport.Conn {
	tb.Helper()
	t.CreateQueues(queues...)
	conn, err := t.Open(tb.Context(), transport.Env{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := conn.Close(); err != nil {
			tb.Error(err)
		}
	})
	return conn
}

func receiver(tb testing.TB, conn transport.Conn, queue string) transport.Receiver {
	tb.Helper()
	r, err := conn.OpenReceiver(tb.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// to is a send of a message with that id, which is its body too.
func to(queue, id string) transport.Operation {
	return transport.Operation{Queue: queue, Message: message(id)}
}

func published(id string, types ...string) transport.Operation {
	return transport.Operation{Types: types, Message: message(id)}
}

func message(id string) *transport.Message {
	return &transport.Message{
		ID:      id,
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}),
		Body:    []byte(id),
	}
}

func dispatch(tb testing.TB, conn transport.Conn, ops ...transport.Operation) []transport.Receipt {
	tb.Helper()
	receipts, err := conn.Dispatch(tb.Context(), ops)
	if err != nil {
		tb.Fatal(err)
	}
	return receipts
}

func receive(tb testing.TB, r transport.Receiver, limit int) []transport.Delivery {
	tb.Helper()
	ds, err := r.Receive(tb.Context(), limit)
	if err != nil {
		tb.Fatal(err)
	}
	return ds
}

// one receives a single message and checks which.
func one(tb testing.TB, r transport.Receiver, id string) transport.Delivery {
	tb.Helper()
	d := receive(tb, r, 1)[0]
	if got := d.Message().ID; got != id {
		tb.Fatalf("received %q, want %q", got, id)
	}
	return d
}

// nothing checks that a Receive would have to wait.
func nothing(tb testing.TB, conn transport.Conn, queue string) {
	tb.Helper()
	if n := stats(tb, conn, queue).Ready; n != 0 {
		tb.Fatalf("queue %q has %d ready messages, want none", queue, n)
	}
}

func stats(tb testing.TB, conn transport.Conn, queue string) transport.QueueStats {
	tb.Helper()
	all, err := conn.(transport.Inspector).Inspect(context.WithoutCancel(tb.Context()), queue)
	if err != nil {
		tb.Fatal(err)
	}
	return all[0]
}

func do(tb testing.TB, settle func(context.Context) error) {
	tb.Helper()
	if err := settle(context.WithoutCancel(tb.Context())); err != nil {
		tb.Fatal(err)
	}
}

func ids(messages []*transport.Message) (ids []string) {
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// waiting checks which messages are ready, in order.
func waiting(tb testing.TB, t *inmemory.Transport, queue string, want ...string) {
	tb.Helper()
	if diff := cmp.Diff(want, ids(t.Messages(queue))); diff != "" {
		tb.Errorf("queue %q (-want +got):\n%s", queue, diff)
	}
}
