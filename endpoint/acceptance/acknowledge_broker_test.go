package acceptance_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// A retry is handled and audited where ServiceControl can be told, and where it has an address that
// no queue of the broker can have.
func TestRetriesOfServiceControlAreHandledOnBrokers(t *testing.T) {
	for name, test := range map[string]struct {
		open func(t *testing.T) transport.Transport
		mode endpoint.TransactionMode
	}{
		"PostgreSQL": {
			func(t *testing.T) transport.Transport { return &postgres.Transport{URL: brokertest.Postgres(t)} }, endpoint.SendsAtomicWithReceive,
		},
		"sqlite": {
			func(t *testing.T) transport.Transport {
				return &sqlite.Transport{Path: filepath.Join(t.TempDir(), "queues.db")}
			}, endpoint.SendsAtomicWithReceive,
		},
		"RabbitMQ": {
			func(t *testing.T) transport.Transport { return &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)} }, endpoint.ReceiveOnly,
		},
	} {
		for _, suffix := range []string{"", "@[dbo]@[queues]"} {
			t.Run(name+suffix, func(t *testing.T) { retryOn(t, test.open(t), test.mode, suffix) })
		}
	}
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
	r.send(placeOrder{}, endpoint.To(queue), endpoint.Header(header.RetryUniqueID, "u-1"), endpoint.Header(header.RetryAcknowledgement, acks+suffix))
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
