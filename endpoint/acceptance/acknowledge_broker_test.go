package acceptance_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A retry is handled and audited where ServiceControl can be told, and where it has an address that
// no queue of the broker can have.
func TestRetryAcknowledged(t *testing.T) {
	onBrokers(t, []string{"postgres"}, []string{"sqlite", "quorum"}, func(t *testing.T, broker string) {
		mode := endpoint.SendsAtomicWithReceive
		if broker == "quorum" {
			mode = endpoint.ReceiveOnly
		}
		for _, suffix := range []string{"", "@[dbo]@[queues]"} {
			retryOn(t, openBroker(t, broker), mode, suffix)
		}
	})
}

func retryOn(t *testing.T, broker transport.Transport, mode endpoint.TransactionMode, suffix string) {
	queue, acks, audit := brokertest.Name(t, "retried"), brokertest.Name(t, "acks"), brokertest.Name(t, "audit")
	cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
		if mode == endpoint.SendsAtomicWithReceive {
			_, err := s.Tx(ctx)
			return err
		}
		return nil
	}))
	cfg.Name, cfg.AuditQueue, cfg.Transactions, cfg.Routes = queue, audit, mode, nil
	cfg.Recoverability = recoverability.Config{ErrorQueue: acks} // so that there is one
	r := start(t, cfg)
	r.send(placeOrder{}, endpoint.To(queue), stateful.Header{Name: header.RetryUniqueID, Value: "u-1"}, stateful.Header{Name: header.RetryAcknowledgement, Value: acks + suffix})
	told := takeOne(t, broker, audit).Headers.Get(header.RetryAcknowledged)
	r.end()
	if suffix != "" {
		if told != "" {
			t.Errorf("the audit copy says %q", told)
		}
		return
	}
	ack := takeOne(t, broker, acks).Headers
	if told != "True" || ack.Get(header.RetryUniqueID) != "u-1" || ack.Get(header.RetrySuccessful) == "" {
		t.Errorf("the audit copy says %q, the acknowledgement %s", told, ack.AppendJSON(nil))
	}
}

// A queue for acknowledgements that is deleted after the endpoint has seen it costs no retry, and
// the audit copy says that none was sent.
func TestAckQueueMayVanish(t *testing.T) {
	modes := map[string]endpoint.TransactionMode{"atomic": endpoint.SendsAtomicWithReceive, "receiveonly": endpoint.ReceiveOnly}
	others := []string{"postgres receiveonly", "sqlite atomic", "sqlite receiveonly"}
	// In a transaction a queue that is gone is an error of a statement. RabbitMQ returns the
	// message.
	onBrokers(t, []string{"postgres atomic", "quorum receiveonly"}, others, func(t *testing.T, on string) {
		broker, mode, _ := strings.Cut(on, " ")
		vanishOn(t, openBroker(t, broker), modes[mode])
	})
}

func vanishOn(t *testing.T, broker transport.Transport, mode endpoint.TransactionMode) {
	queue, acks, audit := brokertest.Name(t, "retried"), brokertest.Name(t, "acks"), brokertest.Name(t, "audit")
	cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
		if s.Attempt().N > 1 {
			t.Errorf("attempt %d", s.Attempt().N)
		}
		if mode == endpoint.SendsAtomicWithReceive {
			if _, err := s.Tx(ctx); err != nil {
				return err
			}
		}
		return s.Send(ctx, m, endpoint.To(audit))
	}))
	cfg.Name, cfg.AuditQueue, cfg.Transactions, cfg.Routes = queue, audit, mode, nil
	cfg.Recoverability = recoverability.Config{ErrorQueue: acks, Immediate: recoverability.None, Delayed: recoverability.None}
	r := start(t, cfg)
	options := []endpoint.SendOption{endpoint.To(queue), stateful.Header{Name: header.RetryUniqueID, Value: "u-1"}, stateful.Header{Name: header.RetryAcknowledgement, Value: acks}}
	conn, err := broker.Open(t.Context(), transport.Env{Logger: cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	copies, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: audit})
	if err != nil {
		t.Fatal(err)
	}
	copies.Window(1)
	r.send(placeOrder{}, options...)
	if told := nextCopy(t, copies).Get(header.RetryAcknowledged); told == "" {
		t.Error("the first was not acknowledged")
	}
	if err := conn.(transport.Remover).Remove(t.Context(), acks); err != nil {
		t.Fatal(err)
	}
	r.send(placeOrder{}, options...)
	if told := nextCopy(t, copies).Get(header.RetryAcknowledged); told != "" {
		t.Errorf("the audit copy says %q", told)
	}
	r.end()
}

// nextCopy removes the next audit copy, and messages of handlers before it.
func nextCopy(t *testing.T, r transport.Receiver) header.Map {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	for {
		got, err := r.Receive(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if err := d.Complete(ctx); err != nil {
				t.Fatal(err)
			}
			if _, processed := d.Message().Headers.Lookup(header.ProcessingEnded); processed {
				return d.Message().Headers
			}
		}
	}
}
