package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
)

// serviceBusRefusedRetry fails a message whose delayed retries the service refuses, as it does in
// the Basic tier.
func serviceBusRefusedRetry(t *testing.T) outcome {
	b := newBus(t, brokertest.OwnServiceBus(t))
	const innocents = 20
	b.ns.Control.Set(brokertest.ServiceBusFaults{Sends: brokertest.ServiceBusRefusal{Status: 400, Operation: "schedule"}})
	b.run(func(cfg *endpoint.Config) {
		cfg.Recoverability = recoverability.Config{Immediate: 1}
	}, func(_ context.Context, _ *endpoint.Session, m busJob) error {
		if m.N == 0 {
			return errors.New("it fails each time")
		}
		return nil
	})
	b.send(1 + innocents)
	took := b.await("the message comes to the error queue", func(queues map[string]brokertest.ServiceBusQueue) bool {
		return queues["error"].Active == 1 && queues["work"].Active == 0
	})
	all, most := b.attempts()
	if all != innocents+2 || most != 2 {
		t.Errorf("%d handler runs, %d of one message, want %d and 2", all, most, innocents+2)
	}
	return outcome{
		message: fmt.Sprintf("in the error queue after %d attempts and %v", most, took.Round(time.Millisecond)), neighbours: "each handled once",
	}
}
