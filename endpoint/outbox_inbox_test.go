package endpoint_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestASecondDeliveryIsCompletedAndNotHandled(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		cfg := storing(broker, db, &written)
		var lose atomic.Bool
		lose.Store(true)
		broker.Fail = func(verb, object string) error { // the acknowledgement is lost, and the lease ends
			if verb == "Complete" && lose.Load() {
				return transport.ErrOutcomeUnknown
			}
			return nil
		}
		first := harness.Start(t, cfg)
		first.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Minute)
		lose.Store(false)
		first.End()
		r := harness.Start(t, cfg)
		time.Sleep(10 * time.Minute)
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1")) // sent twice by its sender
		time.Sleep(time.Minute)
		if len(written.List()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d sent; want 1, 1", len(written.List()), len(broker.Messages("shipping")))
		}
		if n := len(broker.Messages("sales")) + len(broker.Messages("error")) + len(broker.Messages("sales.quarantine")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
		if h := r.Health(); h.Outbox == nil || h.Outbox.Duplicates != 2 {
			t.Errorf("health is %+v", h.Outbox)
		}
	})
}

func TestADifferentMessageWithTheSameIDFails(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		r := harness.Start(t, storing(broker, db, &written))
		r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		r.MustSend(harness.PlaceOrder{ID: "2"}, endpoint.MessageID("m-1"))
		time.Sleep(time.Second)
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get(header.HoldfastFaultClass) != "same-id" {
			t.Fatalf("%d messages in the error queue: %v", len(failed), failed)
		}
		if typ := failed[0].Headers.Get(header.ExceptionType); typ != "*endpoint.sameIDError" {
			t.Errorf("the type of the failure is %s", typ)
		}
		if diff := cmp.Diff([]string{"1"}, written.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAMessageWithoutAnIDIsHandledAtEachDelivery(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		harness.Start(t, storing(broker, db, &written))
		for range 2 {
			m := &transport.Message{Body: []byte(`{"ID":"1"}`)}
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.PlaceOrder")
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if n := len(broker.Messages("shipping")); n != 2 {
			t.Errorf("%d sent, want 2", n)
		}
	})
}

// The number of a row identifies its message only until the database is restored, or the table is
// created anew. A hash of the content identifies no message.
func TestAnIDThatNoSenderGaveIsNotRecorded(t *testing.T) {
	for name, sent := range map[string]transport.Message{
		"number": {NativeID: "17"}, "content": {ID: transport.ContentID([16]byte{17})},
	} {
		t.Run(name, func(t *testing.T) { testNoID(t, sent) })
	}
}

func testNoID(t *testing.T, sent transport.Message) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var tries atomic.Int32
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if s.HasID() {
				t.Errorf("the message has the id %q", s.MessageID())
			}
			if tries.Add(1)%2 == 1 { // so that the second attempt is at a copy
				return recoverability.RetryAfter(errNo, time.Second)
			}
			return s.Send(ctx, harness.ShipOrder(o))
		}))
		cfg.Outbox = db
		r := harness.Start(t, cfg)
		for range 2 {
			m := sent
			m.Body = []byte(`{"ID":"1"}`)
			m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.PlaceOrder"})
			if err := broker.Put("sales", &m); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
		}
		if n, h := len(broker.Messages("shipping")), r.Health(); n != 2 || h.Outbox.Duplicates != 0 {
			t.Errorf("%d sent and %d recognized, want 2, 0", n, h.Outbox.Duplicates)
		}
	})
}

func TestAnInboxInAtomicModeRecognizesDuplicates(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var written harness.Tally
		var fails atomic.Bool
		fails.Store(true)
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
				return err
			}
			if fails.Swap(false) {
				return errNo
			}
			return s.Send(ctx, harness.ShipOrder(o))
		}))
		cfg.Transactions, cfg.Remember = endpoint.SendsAtomicWithReceive, 24*time.Hour
		cfg.Recoverability.Immediate = recoverability.None // the delayed copy has the same id
		r := harness.Start(t, cfg)
		for range 2 {
			r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
			time.Sleep(time.Hour)
		}
		if len(written.List()) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Errorf("%d writes, %d sent; want 1, 1", len(written.List()), len(broker.Messages("shipping")))
		}
		if n := len(broker.Messages("sales")) + len(broker.Messages("error")); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	})
}

// Every id is one: a message is recognized by it, and no other message is taken for it.
func TestAnInboxRecognizesAnyID(t *testing.T) {
	const u = "01a20aae-c3b4-7e2b-94ce-a86803364536"
	ids := []string{
		"1", "a\x00b", "a", "\xff\xfe", "\ufffd\ufffd", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20) + "y",
		u, strings.ToUpper(u), "{" + u + "}", strings.ReplaceAll(u, "-", ""), u[:14] + "8" + u[15:], " " + u,
	}
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var handled atomic.Int32
		cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
			handled.Add(1)
			return nil
		}))
		cfg.Outbox = db
		r := harness.Start(t, cfg)
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
		key = handledid.Of(queue, id)
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

// The inbox is one table, whatever the mode: with the same database nothing is forgotten when the
// mode changes.
func TestIDsAreRecognizedWhenTheModeChanges(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		outbox := storing(broker, db, &written)
		atomically := storing(db, nil, &written)
		atomically.Outbox, atomically.Transactions, atomically.Remember = nil, endpoint.SendsAtomicWithReceive, 7*24*time.Hour
		db.CreateQueues("shipping")
		for _, cfg := range []endpoint.Config{atomically, outbox, atomically} {
			r := harness.Start(t, cfg)
			for _, id := range []string{"a", "01a20a7f-8b4c-7fee-9c52-3b70e4e8ac73"} { // hashed, and a key itself
				r.MustSend(harness.PlaceOrder{ID: id}, endpoint.MessageID(id))
			}
			time.Sleep(time.Second)
			r.End()
		}
		if n := len(written.List()); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

// The changes of an outbox's life that docs/outbox.md describes.

// While instances with and without an outbox have one queue, an instance recognizes only what one
// with the outbox handled.
func TestAnInstanceWithoutTheOutboxRecordsNothing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		send := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			return s.Send(ctx, harness.ShipOrder(o))
		})
		with := harness.Sales(broker, send)
		with.Outbox = db
		for _, step := range []struct {
			cfg  endpoint.Config
			sent int // in all
		}{
			{harness.Sales(broker, send), 1}, // of the earlier version
			{with, 2},                        // does not know that
			{with, 2},
			{harness.Sales(broker, send), 3}, // looks for nothing
		} {
			r := harness.Start(t, step.cfg)
			r.MustSend(harness.PlaceOrder{ID: "1"}, endpoint.MessageID("m-1"))
			synctest.Wait()
			r.End()
			if n := len(broker.Messages("shipping")); n != step.sent {
				t.Errorf("%d sent, want %d", n, step.sent)
			}
		}
	})
}
