package endpoint_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// relayOnly is an endpoint that only sends, over a broker with queues of different moods.
func relayOnly(t *testing.T, b *moodyBroker, db *inmemory.Transport, change func(*endpoint.Config)) *harness.Running {
	t.Helper()
	cfg := harness.Sales(b)
	cfg.SendOnly, cfg.Outbox = true, db
	if change != nil {
		change(&cfg)
	}
	return harness.Start(t, cfg)
}

// storeFor stores a message in the outbox for a queue.
func storeFor(t *testing.T, r *harness.Running, queue, id string) {
	t.Helper()
	err := r.Send(t.Context(), harness.ShipOrder{ID: id}, endpoint.To(queue), endpoint.MessageID(id), endpoint.ViaOutbox())
	if err != nil {
		t.Fatal(err)
	}
}

// waitingFor returns the state of a destination in the health of the outbox; nil if there is none.
func waitingFor(r *harness.Running, queue string) *endpoint.DestinationHealth {
	all := r.Health().Outbox.Waiting
	for i := range all {
		if all[i].Destination == queue {
			return &all[i]
		}
	}
	return nil
}

// A queue that does not answer, or fails alone, holds up no message for another queue. An hour of
// that costs a message at most some 20 copies, and Health and the log name the queue.
func TestASilentQueueHoldsUpNoOther(t *testing.T) {
	for _, m := range []mood{silentMood, unreachableMood, busyMood} {
		t.Run(m.String(), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				b := newMoody(broker)
				b.set("shipping", m)
				log := new(logged)
				r := relayOnly(t, b, db, func(cfg *endpoint.Config) { cfg.Logger = log.logger() })
				for i := range 600 { // ten minutes
					storeFor(t, r, "shipping", fmt.Sprint("held ", i))
					storeFor(t, r, "other", fmt.Sprint("well ", i))
					if pass(time.Second); i > 5 && len(broker.Messages("other")) < i-4 {
						t.Fatalf("%d of %d messages for another queue arrived", len(broker.Messages("other")), i+1)
					}
				}
				pass(50 * time.Minute)
				h := waitingFor(r, "shipping")
				if h == nil || h.Problem == "" || h.Err == "" || h.Rows != 600 || h.Oldest < time.Hour-time.Minute {
					t.Errorf("health is %+v", h)
				}
				most := 0
				for i := range 600 {
					most = max(most, b.sent("shipping", fmt.Sprint("held ", i)))
				}
				if m == silentMood && most > 20 {
					t.Errorf("a message was sent %d times in an hour, want at most 20", most)
				}
				b.set("shipping", wellMood)
				pass(5*time.Minute + 10*time.Second)
				if n := len(distinct(bodies(broker, "shipping"))); n != 600 {
					t.Errorf("%d messages arrived when the queue answered, want 600", n)
				}
				if h := waitingFor(r, "shipping"); h != nil {
					t.Errorf("health is %+v", h)
				}
				for _, text := range []string{"a destination of the outbox accepts no messages", "a destination of the outbox answers again"} {
					if n := strings.Count(log.all(), text); n != 1 {
						t.Errorf("the log has %d lines with %q, want 1:\n%s", n, text, log.all())
					}
				}
			})
		})
	}
}

func distinct(all []string) map[string]bool {
	seen := map[string]bool{}
	for _, s := range all {
		seen[s] = true
	}
	return seen
}

// The first answer of a silent queue has the messages that wait sent at once, also those whose
// pause is long.
func TestAnAnswerCallsTheRowsThatWait(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		b.set("shipping", silentMood)
		r := relayOnly(t, b, db, nil)
		const rows = 5000
		for i := range rows {
			storeFor(t, r, "shipping", fmt.Sprint(i))
		}
		pass(time.Hour)
		b.set("shipping", wellMood)
		for waitingFor(r, "shipping").Problem != "" {
			pass(time.Second)
		}
		pass(5 * time.Second)
		if n := len(distinct(bodies(broker, "shipping"))); n != rows {
			t.Errorf("%d messages arrived 5 s after the first answer, want %d", n, rows)
		}
	})
}

// While the driver says that there is no connection, no destination is blamed, and everything is
// sent when it is back.
func TestABrokerThatIsAwayBlamesNoQueue(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		r := relayOnly(t, b, db, nil)
		b.away.Store(true)
		for i := range 1000 {
			storeFor(t, r, []string{"shipping", "other"}[i%2], fmt.Sprint(i))
		}
		pass(time.Hour)
		if all := r.Health().Outbox.Waiting; all != nil {
			t.Errorf("health names %+v", all)
		}
		b.away.Store(false)
		pass(10 * time.Second)
		if n := len(broker.Messages("shipping")) + len(broker.Messages("other")); n != 1000 {
			t.Errorf("%d messages arrived, want 1000", n)
		}
	})
}

// With Concurrency 1 messages keep their order: the relay waits for a silent queue, and Health
// names it.
func TestARelayInOrderWaitsForASilentQueue(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		b.set("shipping", silentMood)
		r := relayOnly(t, b, db, func(cfg *endpoint.Config) { cfg.Concurrency = 1 })
		var want []string
		for i := range 300 {
			storeFor(t, r, "shipping", fmt.Sprint(i))
			want = append(want, fmt.Sprintf(`{"ID":"%d"}`, i))
			pass(100 * time.Millisecond)
		}
		pass(time.Hour)
		if h := waitingFor(r, "shipping"); h == nil || h.Problem == "" {
			t.Errorf("health is %+v", h)
		}
		b.set("shipping", wellMood)
		pass(6 * time.Minute)
		if diff := cmp.Diff(want, bodies(broker, "shipping")); diff != "" {
			t.Error(diff)
		}
		if n := b.sent("shipping", "0"); n > 25 {
			t.Errorf("a message was sent %d times", n)
		}
	})
}

// An audit queue that does not answer delays copies only. They do not count against the bound of
// other messages.
func TestASilentAuditQueueDelaysCopiesOnly(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.CreateQueues("audit")
		b := newMoody(broker)
		b.set("audit", silentMood)
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.Transport, cfg.AuditQueue = b, "audit"
		r := harness.Start(t, cfg)
		for i := range 600 {
			r.MustSend(harness.PlaceOrder{ID: fmt.Sprint(i)})
			pass(time.Second)
		}
		if n := len(distinct(bodies(broker, "shipping"))); n != 600 {
			t.Errorf("%d messages arrived, want 600", n)
		}
		if h := waitingFor(r, "audit"); h == nil || h.Audit < 590 || h.Rows != h.Audit {
			t.Errorf("health is %+v", h)
		}
		b.set("audit", wellMood)
		pass(6 * time.Minute)
		if n := len(distinct(bodies(broker, "audit"))); n != 600 {
			t.Errorf("%d audit copies arrived, want 600", n)
		}
	})
}

// An error queue that does not answer holds up no message, and gets those that were refused when it
// answers.
func TestASilentErrorQueueHoldsUpNoMessage(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		r := relayOnly(t, b, db, nil)
		storeFor(t, r, "shipping", "first") // then the queue is known to exist
		pass(time.Second)
		b.set("shipping", missingMood)
		b.set("error", silentMood)
		for i := range 200 {
			err := r.Send(context.WithoutCancel(t.Context()), harness.ShipOrder{ID: fmt.Sprint(i)}, endpoint.To("shipping"), endpoint.ViaOutbox())
			if err != nil {
				t.Fatal(err)
			}
			storeFor(t, r, "other", fmt.Sprint("well ", i))
			if pass(time.Second); i > 5 && len(broker.Messages("other")) < i-4 {
				t.Fatalf("%d of %d messages for another queue arrived", len(broker.Messages("other")), i+1)
			}
		}
		if h := waitingFor(r, "error"); h == nil || h.Rows == 0 {
			t.Errorf("health is %+v", r.Health().Outbox.Waiting)
		}
		b.set("error", wellMood)
		pass(12 * time.Minute)
		if n := len(distinct(bodies(broker, "error"))); n != 200 {
			t.Errorf("%d messages in the error queue, want 200", n)
		}
	})
}
