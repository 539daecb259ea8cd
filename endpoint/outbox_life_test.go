package endpoint_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The changes of an outbox's life that docs/outbox.md describes.

// While instances with and without an outbox have one queue, an instance recognizes only what one with the outbox handled.
func TestAnInstanceWithoutTheOutboxRecordsNothing(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		send := endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o placeOrder) error {
			return s.Send(ctx, shipOrder(o))
		})
		with := sales(broker, send)
		with.Outbox = db
		for _, step := range []struct {
			cfg  endpoint.Config
			sent int // in all
		}{
			{sales(broker, send), 1}, // of the earlier version
			{with, 2},                // does not know that
			{with, 2},
			{sales(broker, send), 3}, // looks for nothing
		} {
			r := start(t, step.cfg)
			r.send(placeOrder{ID: "1"}, endpoint.MessageID("m-1"))
			synctest.Wait()
			r.end()
			if n := len(broker.Messages("shipping")); n != step.sent {
				t.Errorf("%d sent, want %d", n, step.sent)
			}
		}
	})
}

// The inbox is one table, whatever the mode: with the same database nothing is forgotten when the mode changes.
func TestIDsAreRecognizedWhenTheModeChanges(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written tally
		outbox := storing(broker, db, &written)
		atomically := storing(db, nil, &written)
		atomically.Outbox, atomically.Transactions, atomically.Remember = nil, endpoint.SendsAtomicWithReceive, 7*24*time.Hour
		db.CreateQueues("shipping")
		for _, cfg := range []endpoint.Config{atomically, outbox, atomically} {
			r := start(t, cfg)
			for _, id := range []string{"a", "01a20a7f-8b4c-7fee-9c52-3b70e4e8ac73"} { // hashed, and a key itself
				r.send(placeOrder{ID: id}, endpoint.MessageID(id))
			}
			time.Sleep(time.Second)
			r.end()
		}
		if n := len(written.list()); n != 2 {
			t.Errorf("%d writes, want 2", n)
		}
	})
}

// The outbox is switched off while rows are left in it: a send-only endpoint of the same name sends them.
func TestASendOnlyEndpointSendsWhatIsLeft(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var away atomic.Bool
		broker.Fail = func(verb, object string) error {
			if away.Load() && verb == "Dispatch" && object == "shipping" {
				return transport.ErrUnreachable
			}
			return nil
		}
		r := start(t, storing(broker, db, new(tally)))
		away.Store(true)
		r.send(placeOrder{ID: "1"})
		time.Sleep(time.Second)
		r.end()
		if n := len(db.Messages("sales.outbox")); n != 1 {
			t.Fatalf("the outbox has %d messages, want 1", n)
		}
		away.Store(false)
		drain := endpoint.Config{Name: "sales", Transport: broker, Outbox: db, SendOnly: true}
		drained := start(t, drain)
		time.Sleep(10 * time.Second) // the depth is inspected every 5 s
		if h := drained.Health(); h.Outbox.Ready != 0 || h.Outbox.Unsettled != 0 || h.Outbox.Sent != 1 {
			t.Errorf("health is %+v", h.Outbox)
		}
		if n := len(broker.Messages("shipping")); n != 1 {
			t.Errorf("%d sent, want 1", n)
		}
	})
}

// A function of Config.Background may store a message at the very end: the relay ends after it.
func TestWhatABackgroundFunctionStoresLastIsSent(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		cfg := storing(broker, db, new(tally))
		cfg.Background = []func(context.Context, *endpoint.Endpoint){func(ctx context.Context, e *endpoint.Endpoint) {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			if err := e.Send(context.WithoutCancel(ctx), shipOrder{ID: "last"}, endpoint.ViaOutbox()); err != nil {
				t.Error(err)
			}
		}}
		start(t, cfg).end()
		if sent, left := len(broker.Messages("shipping")), len(db.Messages("sales.outbox")); sent != 1 || left != 0 {
			t.Errorf("%d sent, %d left in the outbox; want 1, 0", sent, left)
		}
	})
}

// When Run has returned, no goroutine of the relay is left.
func TestTheRelayLeavesNoGoroutine(t *testing.T) {
	for range 50 {
		withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
			start(t, storing(broker, db, new(tally))).end()
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if strings.Contains(string(stacks), "endpoint.(*relay)") {
				t.Fatalf("a goroutine of the relay is left:\n%s", stacks)
			}
		})
	}
}
