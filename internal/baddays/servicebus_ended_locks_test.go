package baddays_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
)

// serviceBusEndedLocks ends links and connections under load where the locks of messages end with
// them.
func serviceBusEndedLocks(t *testing.T) outcome {
	var o outcome
	for _, profile := range []brokertest.ServiceBusProfile{brokertest.ServiceBusLinksCounted, brokertest.ServiceBusLinksUncounted} {
		b := newBus(t, brokertest.OwnServiceBusOf(t, profile))
		messages := size(100, 1000)
		b.run(func(cfg *endpoint.Config) {
			cfg.Recoverability = recoverability.Config{Immediate: 10, Delayed: recoverability.None}
		}, func(ctx context.Context, s *endpoint.Session, m busJob) error {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			return nil
		})
		b.send(messages)
		for range size(3, 10) {
			left := b.ns.Control.State().Queues["work"].Active
			b.await("some are handled", func(queues map[string]brokertest.ServiceBusQueue) bool {
				return queues["work"].Active == 0 || queues["work"].Active <= left-messages/20
			})
			b.ns.Control.Detach("work", "")
			b.ns.Control.Drop()
		}
		took := b.await("all are handled", func(queues map[string]brokertest.ServiceBusQueue) bool {
			return queues["work"].Active+queues["work"].DeadLetters+queues["work.quarantine"].Active == 0
		})
		all, _ := b.attempts()
		if lost := messages - len(b.runs); lost != 0 {
			t.Errorf("%s: %d messages were never handled", profile, lost)
		}
		if got := b.ns.Control.State().Queues["error"].Active; got != 0 {
			t.Errorf("%s: %d messages are in the error queue", profile, got)
		}
		o.message = fmt.Sprintf("%d runs for %d messages", all, messages)
		o.neighbours = "none lost, none in quarantine or in the error queue"
		o.normal = max(o.normal, took)
	}
	return o
}
