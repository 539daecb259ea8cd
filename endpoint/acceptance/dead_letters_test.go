package acceptance_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// A policy that never gives up meets the broker's limit. What the broker takes out of the queue is
// not dropped: it comes to the error queue by the way of dead letters.
func TestDeadLettersOfRabbitMQ(t *testing.T) {
	t.Parallel()
	const limit = 3
	broker := &rabbitmq.Transport{URL: brokertest.RabbitMQ(t), DeliveryLimit: limit}
	var attempts atomic.Int32
	cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
		attempts.Add(1)
		return errNo
	}))
	cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action { return recoverability.Retry{} }
	r := start(t, cfg)
	r.send(placeOrder{}, endpoint.MessageID("endless"))

	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	receiver, err := conn.OpenReceiver(ctx, transport.ReceiverOptions{Queue: "error"})
	if err != nil {
		t.Fatal(err)
	}
	receiver.Window(1)
	ds, err := receiver.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := ds[0].Message()
	if m.ID != "endless" || m.Headers.Get(header.FailedQ) != "sales" || m.Headers.Get(header.HoldfastFaultClass) != "dead-lettered" {
		t.Errorf("message %q of queue %q, class %q", m.ID, m.Headers.Get(header.FailedQ), m.Headers.Get(header.HoldfastFaultClass))
	}
	if got := attempts.Load(); got != limit+1 {
		t.Errorf("%d attempts, want %d", got, limit+1)
	}
	if err := ds[0].Complete(ctx); err != nil {
		t.Error(err)
	}
}
