package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

var errRoutes = errors.New("header \"CC\": the broker routes messages by it")

// fussy is a broker that refuses messages with a header.
type fussy struct{ *inmemory.Transport }

func (f fussy) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	conn, err := f.Transport.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return fussyConn{conn.(fullConn)}, nil
}

type fussyConn struct{ fullConn }

func (c fussyConn) Check(op *transport.Operation) error {
	if _, ok := op.Message.Headers.Lookup("CC"); ok {
		return errRoutes
	}
	return nil
}

func (c fussyConn) Dispatch(ctx context.Context, ops []transport.Operation) ([]transport.Receipt, error) {
	var failed []transport.OpError
	for i := range ops {
		err := c.Check(&ops[i])
		if err == nil {
			_, err = c.fullConn.Dispatch(ctx, ops[i:i+1])
		}
		if err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if failed != nil {
		return nil, &transport.DispatchError{Ops: failed, Total: len(ops)}
	}
	return nil, nil
}

// A message that the driver refuses because of a header is refused before the commit: the handled
// message fails, and what its handler wrote is undone.
func TestARefusedHeaderFailsBeforeTheCommit(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		var written harness.Tally
		cfg := storing(broker, db, &written)
		cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
			if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
				return err
			}
			return s.Send(ctx, harness.ShipOrder(o), endpoint.Headers(header.New(header.Field{Name: "CC", Value: "others"})))
		})}
		cfg.Transport, cfg.Recoverability = fussy{broker}, once
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "1"})
		pass(time.Minute)
		if len(written.List()) != 0 || len(db.Messages("sales.outbox")) != 0 {
			t.Errorf("%v was written, and the outbox has %d messages", written.List(), len(db.Messages("sales.outbox")))
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || !strings.Contains(failed[0].Headers.Get(header.ExceptionMessage), errRoutes.Error()) {
			t.Errorf("%d messages in the error queue: %v", len(failed), failed)
		}
		err := r.Send(t.Context(), harness.ShipOrder{ID: "2"}, endpoint.Headers(header.New(header.Field{Name: "CC", Value: "others"})), endpoint.ViaOutbox())
		if !errors.Is(err, errRoutes) {
			t.Errorf("the send via the outbox returns %v", err)
		}
	})
}

// While the error queue refuses messages of the outbox, the endpoint is not ready, and Health
// counts the rows that wait. The endpoint is ready as soon as the error queue has accepted the
// messages.
func TestAnErrorQueueThatRefusesIsNotReady(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		r := relayOnly(t, b, db, nil)
		storeFor(t, r, "shipping", "first")
		pass(time.Second)
		b.set("shipping", missingMood)
		b.set("error", refusingMood)
		storeFor(t, r, "shipping", "refused")
		for range 30 {
			pass(20 * time.Second)
			h := r.Health()
			if h.Ready || !strings.Contains(strings.Join(h.Reasons, " "), errRefusing.Error()) {
				t.Fatalf("ready %t, reasons %q", h.Ready, h.Reasons)
			}
			if w := waitingFor(r, "error"); w == nil || w.Rows != 1 {
				t.Fatalf("waiting %+v", h.Outbox.Waiting)
			}
		}
		b.set("error", wellMood)
		for range 120 {
			if pass(time.Second); len(broker.Messages("error")) > 0 {
				break
			}
		}
		if h := r.Health(); !h.Ready || len(broker.Messages("error")) != 1 || len(h.Outbox.Waiting) != 0 {
			t.Errorf("%d in the error queue, health %+v", len(broker.Messages("error")), h)
		}
	})
}

// Two messages with one id, which a program has chosen, are for two queues. Health tells them
// apart.
func TestARefusedMessageOfTwoWithOneID(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		r := relayOnly(t, b, db, nil)
		b.set("shipping", missingMood)
		b.set("error", refusingMood)
		storeFor(t, r, "shipping", "one")
		pass(2 * time.Minute)
		storeFor(t, r, "other", "one")
		pass(2 * time.Second)
		if h := r.Health(); h.Ready || len(broker.Messages("other")) != 1 {
			t.Errorf("%d sent to the other queue, ready %t", len(broker.Messages("other")), h.Ready)
		}
	})
}

// A refused message whose time to live ends waits no longer.
func TestARefusedMessageThatExpiresIsForgotten(t *testing.T) {
	withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
		b := newMoody(broker)
		r := relayOnly(t, b, db, nil)
		b.set("shipping", missingMood)
		b.set("error", refusingMood)
		err := r.Send(t.Context(), harness.ShipOrder{ID: "1"}, endpoint.To("shipping"), endpoint.ViaOutbox(), endpoint.ExpireAfter(5*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Minute)
		if h := r.Health(); h.Ready {
			t.Error("ready")
		}
		pass(70 * time.Second)
		if h := r.Health(); !h.Ready {
			t.Errorf("health %+v", h)
		}
	})
}
