package acceptance_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// A message whose id has a megabyte is handled, answered, copied and moved like others, and no line
// of the log has it.
func TestLargeID(t *testing.T) {
	onBrokers(t, []string{"memory", "quorum"}, []string{"postgres", "sqlite"}, func(t *testing.T, name string) {
		on := &landscape{Transport: openBroker(t, name)}
		on.install(t, "net")
		var log lockedBuffer
		cfg := sales(on.Transport,
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
				return s.Reply(ctx, orderAccepted{"7"})
			}),
			endpoint.Handle(func(context.Context, *endpoint.Session, shipOrder) error { return errors.New("no") }),
		)
		cfg.AuditQueue, cfg.Logger = "audit", slog.New(slog.NewTextHandler(&log, nil))
		cfg.Recoverability = recoverability.Config{ErrorQueue: "error", Immediate: 1, Delayed: recoverability.None}
		run := start(t, cfg)
		id := strings.Repeat("i", 1<<20)
		if name == "quorum" { // all headers of a message fit into one frame of 128 KiB
			on.tooLarge(t, id)
			id = id[:100<<10/3]
		}
		for _, kind := range []string{"Shop.PlaceOrder", "Shop.ShipOrder", "Shop." + id[:30<<10]} {
			on.dispatch(t, transport.Operation{Queue: "sales", Message: &transport.Message{ID: id, Body: []byte(`{"ID":"7"}`), Headers: header.New(
				header.Field{Name: header.MessageID, Value: id}, header.Field{Name: header.EnclosedMessageTypes, Value: kind},
				header.Field{Name: header.ReplyToAddress, Value: "net"},
			)}})
		}
		reply, failed, audited := on.take(t, "net", 1)[0], on.take(t, "error", 2), on.take(t, "audit", 1)[0]
		run.end()
		if reply.Headers.Get(header.RelatedTo) != id || failed[0].ID != id || failed[1].ID != id || audited.ID != id {
			t.Errorf("ids of %d, %d and %d bytes", len(reply.Headers.Get(header.RelatedTo)), len(failed[0].ID), len(audited.ID))
		}
		for line := range strings.Lines(log.String()) {
			if len(line) > 8<<10 {
				t.Errorf("a line of the log has %d bytes: %.300s", len(line), line)
			}
		}
	})
}

// tooLarge sends a message whose id is over the broker's limit.
func (on *landscape) tooLarge(t *testing.T, id string) {
	t.Helper()
	conn, err := on.Open(t.Context(), transport.Env{})
	must(t, err)
	_, err = conn.Dispatch(t.Context(), []transport.Operation{{Queue: "sales", Message: &transport.Message{ID: id}}})
	if !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("sent: %v", err)
	}
	must(t, conn.Close())
}

// dispatch sends an operation.
func (on *landscape) dispatch(t *testing.T, op transport.Operation) {
	t.Helper()
	conn, err := on.Open(t.Context(), transport.Env{})
	must(t, err)
	_, err = conn.Dispatch(t.Context(), []transport.Operation{op})
	must(t, err)
	must(t, conn.Close())
}
