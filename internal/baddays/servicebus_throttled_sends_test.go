package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
)

// serviceBusThrottledSends throttles what handlers send.
func serviceBusThrottledSends(t *testing.T) outcome {
	b := newBus(t, brokertest.OwnServiceBus(t))
	messages := size(100, 300)
	handled := make(chan struct{}, 100*messages)
	b.run(func(*endpoint.Config) {}, func(ctx context.Context, s *endpoint.Session, m busJob) error {
		handled <- struct{}{}
		return s.Send(ctx, m, endpoint.To("target"))
	})
	b.await("it runs", func(queues map[string]brokertest.ServiceBusQueue) bool { return queues["work"].Links > 0 })
	b.send(messages)
	<-handled
	b.ns.Control.Set(brokertest.ServiceBusFaults{Sends: brokertest.ServiceBusRefusal{Status: 503}})
	<-time.After(time.Duration(size(3, 20)) * time.Second) // the throttle
	b.ns.Control.Set(brokertest.ServiceBusFaults{})
	took := b.await("all are handled", func(queues map[string]brokertest.ServiceBusQueue) bool {
		return queues["work"].Active == 0 && queues["work.quarantine"].Active == 0 && queues["target"].Active >= messages
	})
	queues := b.ns.Control.State().Queues
	all, most := b.attempts()
	if queues["target"].Active != messages || queues["error"].Active != 0 {
		t.Errorf("%d messages were sent, want %d; %d are in the error queue", queues["target"].Active, messages, queues["error"].Active)
	}
	// A send waits for as long as the endpoint lets it, 10 s; 16 messages are handled and 64 settle
	// at once.
	if extra := 80 * size(0, 3); all > messages+extra || most > 1+size(0, 3) {
		t.Errorf("%d handler runs for %d messages, %d of one message", all, messages, most)
	}
	return outcome{
		message: fmt.Sprintf("%d runs for %d messages, %d of one at most", all, messages, most), neighbours: "none in quarantine or in the error queue", normal: took,
	}
}
