package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Every id is one: a message is recognized by it, and no other message is taken for it.
func TestAnInboxRecognizesAnyID(t *testing.T) {
	const u = "01a20aae-c3b4-7e2b-94ce-a86803364536"
	ids := []string{
		"1", "a\x00b", "a", "\xff\xfe", "\ufffd\ufffd", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20) + "y",
		u, strings.ToUpper(u), "{" + u + "}", strings.ReplaceAll(u, "-", ""), u[:14] + "8" + u[15:], " " + u,
	}
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled atomic.Int32
		cfg := sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, placeOrder) error {
			handled.Add(1)
			return nil
		}))
		cfg.Outbox = db
		r := start(t, cfg)
		for range 2 {
			for _, id := range ids {
				m := &transport.Message{ID: id, Body: []byte(`{"ID":"1"}`)}
				m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
				if err := broker.Put("sales", m); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
		}
		if n := int(handled.Load()); n != len(ids) || r.Health().Outbox.Duplicates != int64(len(ids)) {
			t.Errorf("%d handled and %d recognized, want %d each", n, r.Health().Outbox.Duplicates, len(ids))
		}
		if n := len(broker.Messages("error")); n != 0 {
			t.Errorf("%d failed", n)
		}
	})
}

// No sender can choose an id whose key is that of another message.
func TestNoTwoMessagesHaveOneKey(t *testing.T) {
	type message struct{ queue, id string }
	keys := map[[16]byte]message{}
	add := func(queue, id string) (key [16]byte) {
		key = endpoint.HandledID(queue, id)
		if other, ok := keys[key]; ok && other != (message{queue, id}) {
			t.Fatalf("%q and %q have the key %x", other, message{queue, id}, key)
		}
		keys[key] = message{queue, id}
		return key
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same pairs in each run
	for range 50_000 {
		b := make([]byte, 16)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		id := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
		key := add("sales", id)
		for _, near := range []string{
			strings.ToUpper(id), id + " ", id[:14] + "8" + id[15:], string(b), fmt.Sprintf("%x", key),
			fmt.Sprintf("%x-%x-%x-%x-%x", key[:4], key[4:6], key[6:8], key[8:10], key[10:]), // the key itself, as an id
		} {
			add("sales", near)
		}
		add("sales", "x\x00"+id)
		add("sales\x00x", "") // not the same text as the queue "sales" with the id "x"
	}
}

func TestAHandlerSendsTenThousandMessages(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		const n = 10_000
		filler := strings.Repeat("x", 1000) // several rows
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			for i := range n {
				if err := s.Send(ctx, shipOrder{ID: fmt.Sprint(i, filler)}); err != nil {
					return err
				}
			}
			return nil
		}))
		cfg.Outbox, cfg.Concurrency = db, 1 // in order
		start(t, cfg).send(placeOrder{ID: "1"})
		pass(time.Minute)
		sent := broker.Messages("shipping")
		if len(sent) != n {
			t.Fatalf("%d sent, want %d", len(sent), n)
		}
		for i, m := range sent {
			if !strings.HasPrefix(string(m.Body), fmt.Sprintf(`{"ID":"%dx`, i)) {
				t.Fatalf("message %d is %.40s", i, m.Body)
			}
		}
	})
}

// A row that cannot be read stays, and holds up neither others nor the handlers. An instance that can read it sends it.
func TestRowsThatCannotBeReadStay(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		db.Lease = 30 * time.Second
		var written tally
		r := start(t, storing(broker, db, &written))
		for _, body := range [][]byte{{2, 1, 2, 3}, {1, 200}, {}, nil} {
			if err := db.Put("sales.outbox", &transport.Message{ID: "row", Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		for i := range 10 {
			r.send(placeOrder{ID: fmt.Sprint(i)})
			pass(time.Minute)
		}
		if w, s := len(written.list()), len(broker.Messages("shipping")); w != 10 || s != 10 {
			t.Errorf("%d handled, %d sent; want 10, 10", w, s)
		}
		warned := strings.Join(r.Health().Warnings, " ")
		if !strings.Contains(warned, "messages in the outbox cannot be read") {
			t.Errorf("the warnings are %q", warned)
		}
		r.end()
		if n := len(db.Messages("sales.outbox")); n != 4 {
			t.Errorf("%d rows are left, want 4", n)
		}
	})
}

// A row that cannot be read is reported as long as it is there, also between two of its leases.
func TestARowThatCannotBeReadIsReportedWhileItIsThere(t *testing.T) {
	for _, lease := range []time.Duration{0, 30 * time.Second, time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				db.Lease = lease
				r := start(t, storing(broker, db, new(tally)))
				if err := db.Put("sales.outbox", &transport.Message{ID: "row", Body: []byte{1, 200}}); err != nil {
					t.Fatal(err)
				}
				warned := func() bool {
					return strings.Contains(strings.Join(r.Health().Warnings, " "), "messages in the outbox cannot be read")
				}
				for range 30 {
					if pass(7 * time.Minute); !warned() {
						t.Fatal("no warning, and the row is there")
					}
				}
				if lease == 0 { // the row stays with the receiver
					return
				}
				conn, err := db.Open(t.Context(), transport.Env{})
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(conn.(transport.Remover).Remove(t.Context(), "sales.outbox"), conn.Close()); err != nil {
					t.Fatal(err)
				}
				db.CreateQueues("sales.outbox")
				if pass(5 * time.Hour); warned() {
					t.Error("a warning, and the row is gone")
				}
			})
		})
	}
}

// Two endpoints have one database: neither takes a message of the other for a duplicate, or sends for it.
func TestTwoEndpointsShareTheDatabaseOfTheirOutboxes(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var sales, billing tally
		start(t, storing(broker, db, &sales))
		cfg := storing(broker, db, &billing)
		cfg.Name = "billing"
		r := start(t, cfg)
		for _, queue := range []string{"sales", "billing"} {
			r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"), endpoint.To(queue))
		}
		pass(time.Minute)
		if a, b := len(sales.list()), len(billing.list()); a != 1 || b != 1 || len(broker.Messages("shipping")) != 2 {
			t.Errorf("%d and %d handled, %d sent; want 1, 1, 2", a, b, len(broker.Messages("shipping")))
		}
	})
}

// Once the relay has found that a queue is missing, the next message for it fails before its commit.
func TestAMissingQueueIsRememberedByTheRelay(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var gone atomic.Bool
		broker.Fail = func(verb, object string) error {
			if gone.Load() && object == "shipping" {
				return transport.ErrNoQueue
			}
			return nil
		}
		var written tally
		cfg := storing(broker, db, &written)
		cfg.Recoverability = once
		r := start(t, cfg)
		for i := range 3 { // the queue exists, goes while a message for it is stored, and is known to be gone
			gone.Store(i > 0)
			r.send(placeOrder{ID: fmt.Sprint(i)})
			pass(time.Second)
		}
		if diff := cmp.Diff([]string{"0", "1"}, written.list()); diff != "" {
			t.Error(diff)
		}
		if n := len(broker.Messages("error")); n != 2 {
			t.Errorf("%d messages in the error queue, want 2", n)
		}
	})
}

// A broker that delivers again what is held for too long, and counts that, does not make suspects of the messages that
// wait while the database is away.
func TestALongOutageMakesNoSuspects(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		broker.Without = inmemory.FreeRelease
		var away, quarantined atomic.Bool
		db.Fail = func(string, string) error {
			if away.Load() {
				return transport.ErrUnreachable
			}
			return nil
		}
		var written tally
		cfg := storing(broker, db, &written)
		cfg.Transport, cfg.Recoverability = &holdingBroker{broker, 10 * time.Minute}, once
		cfg.Notify = []func(context.Context, endpoint.Notification){func(_ context.Context, n endpoint.Notification) {
			quarantined.Store(quarantined.Load() || n.Kind == endpoint.Quarantined)
		}}
		r := start(t, cfg)
		away.Store(true)
		for i := range 5 {
			r.send(placeOrder{ID: fmt.Sprint(i)})
		}
		pass(12 * time.Hour)
		away.Store(false)
		pass(time.Hour)
		if n := len(written.list()); n != 5 || quarantined.Load() {
			t.Errorf("%d messages were handled, want 5; quarantined: %t", n, quarantined.Load())
		}
		if n := len(broker.Messages("error")) + len(broker.Messages("sales.quarantine")); n > 0 {
			t.Errorf("%d messages are in the error queue or in quarantine", n)
		}
	})
}
