package endpoint_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Messages for a queue that is full for a while wait, and none moves to the error queue.
func TestAFullQueueIsWaitedFor(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		b.set("shipping", fullMood)
		r := relayOnly(t, b, db, nil)
		const rows = 242
		for i := range rows {
			storeFor(t, r, "shipping", fmt.Sprint(i))
		}
		pass(45 * time.Second)
		if h := waitingFor(r, "shipping"); h == nil || h.Problem != "is full" || h.Rows != rows {
			t.Errorf("health is %+v", h)
		}
		b.set("shipping", wellMood)
		pass(35 * time.Second)
		if sent, failed := len(broker.Messages("shipping")), len(broker.Messages("error")); sent != rows || failed != 0 {
			t.Errorf("%d sent, %d in the error queue; want %d, 0", sent, failed, rows)
		}
		for _, m := range broker.Messages("shipping") {
			if value, ok := m.Headers.Lookup(header.HoldfastOutboxRefused); ok {
				t.Fatalf("a message was sent with the time %q of its refusal", value)
			}
		}
	})
}

// A message that a queue refuses for the configured time moves to the error queue, counted over
// restarts.
func TestAFullQueueIsGivenUpAfterAWhile(t *testing.T) {
	for _, limit := range []time.Duration{0, 3 * time.Minute, endpoint.None} {
		t.Run(limit.String(), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				b := newMoody(broker)
				b.set("shipping", fullMood)
				configure := func(cfg *endpoint.Config) { cfg.OutboxRefusedFor = limit }
				r := relayOnly(t, b, db, configure)
				storeFor(t, r, "shipping", "1")
				stays := map[time.Duration]time.Duration{0: 10 * time.Minute, endpoint.None: 100 * time.Millisecond}[limit]
				if stays == 0 {
					stays = limit
				}
				pass(stays / 2)
				r.End()
				r = relayOnly(t, b, db, configure)
				pass(stays/2 - stays/10)
				if n := len(broker.Messages("error")); n != 0 && limit >= 0 {
					t.Errorf("moved to the error queue before %v", stays)
				}
				pass(stays/10 + 40*time.Second)
				if n := len(broker.Messages("error")); n != 1 {
					t.Errorf("%d messages in the error queue, want 1; health %+v", n, waitingFor(r, "shipping"))
				}
			})
		})
	}
}

// A full audit queue has its copies moved to the error queue after three tries.
func TestAFullAuditQueueIsTriedThreeTimes(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.CreateQueues("audit")
		b := newMoody(broker)
		b.set("audit", fullMood)
		cfg := storing(broker, db, new(harness.Tally))
		cfg.Transport, cfg.AuditQueue = b, "audit"
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m"))
		pass(5 * time.Second)
		if tries, moved := b.sent("audit", "m"), len(broker.Messages("error")); tries != 3 || moved != 1 {
			t.Errorf("%d tries, %d copies in the error queue; want 3, 1", tries, moved)
		}
	})
}
