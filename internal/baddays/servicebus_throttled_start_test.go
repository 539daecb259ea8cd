package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// serviceBusThrottledStart starts an endpoint while the service refuses every token and request,
// and has dead letters wait.
func serviceBusThrottledStart(t *testing.T) outcome {
	b := newBus(t, brokertest.OwnServiceBus(t))
	b.send(2)
	b.deadLetter()
	busy := brokertest.ServiceBusRefusal{Status: 503}
	b.ns.Control.Set(brokertest.ServiceBusFaults{Claims: busy, Management: busy})
	before := b.ns.Control.State().Counts.Claims
	b.run(func(cfg *endpoint.Config) { cfg.Install = false }, func(context.Context, *endpoint.Session, busJob) error { return nil })
	<-time.After(time.Duration(size(3, 30)) * time.Second) // the throttle
	claims := b.ns.Control.State().Counts.Claims - before
	b.ns.Control.Set(brokertest.ServiceBusFaults{})
	took := b.await("the message is handled and the dead letter moved", func(queues map[string]brokertest.ServiceBusQueue) bool {
		return queues["work"].Active == 0 && queues["work"].DeadLetters == 0 && queues["error"].Active == 1
	})
	// Each connection asks at most once a second, and tokens are for a queue and its $management.
	if most := 2 * 6 * size(3, 30); claims > most {
		t.Errorf("%d tokens were shown while the namespace was throttled, want at most %d", claims, most)
	}
	return outcome{
		message: "handled once the throttling ended", neighbours: fmt.Sprintf("the dead letter is in the error queue; %d requests meanwhile", claims), normal: took,
	}
}
