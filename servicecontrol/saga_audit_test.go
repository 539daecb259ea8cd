package servicecontrol_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/servicecontrol"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	billed struct{ Orders int }
	shipIt struct{ N int }
)

// audited runs an endpoint with two sagas and returns the messages of the audit queue, after
// commands were handled.
func audited(t *testing.T, failing bool, commands ...any) []*transport.Message {
	t.Helper()
	broker := &inmemory.Transport{}
	broker.CreateQueues("audit", "error", "shipping")
	key := func(m placeOrder) string { return string(rune('a' + m.N)) }
	place := func(ctx context.Context, c *saga.Context[billed], m placeOrder) error {
		if c.State.Orders++; c.State.Orders == 3 {
			c.Complete()
		}
		if failing {
			return errors.New("broken")
		}
		return errors.Join(c.Send(ctx, shipIt(m)), c.SetTimeout(ctx, "late", shipIt(m), endpoint.After(26*time.Hour)))
	}
	late := func(context.Context, *saga.Context[billed], shipIt) error { return nil }
	bills := saga.New("bills", saga.Start(key, func(_ context.Context, c *saga.Context[billed], _ placeOrder) error {
		c.State.Orders++
		return nil
	}))
	orders := saga.New("or:ders", saga.Start(key, place), saga.OnTimeout(late))
	cfg := endpoint.Config{
		Name: "Sales", Transport: broker, Outbox: &inmemory.Transport{}, Install: true, AuditQueue: "audit",
		Messages: []endpoint.Message{
			endpoint.Command[placeOrder]("Shop.PlaceOrder").To("Sales"), endpoint.Command[shipIt]("Shop.ShipIt").To("shipping"),
		},
		Handlers: append(orders.Handlers(), bills.Handlers()...), Logger: slog.New(slog.DiscardHandler),
	}
	if err := servicecontrol.Attach(&cfg, servicecontrol.Config{SagaAuditQueue: "audit"}); err != nil {
		t.Fatal(err)
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	for _, m := range commands {
		if err := e.Send(ctx, m, endpoint.MessageID("m-1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
	}
	return broker.Messages("audit")
}

func TestSagasAreAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := audited(t, false, placeOrder{1})
		if len(sent) != 3 {
			t.Fatalf("%d messages in the audit queue, want two reports and the copy", len(sent))
		}
		orders := uuid.Text(saga.ID("Sales", "or:ders", "b"))
		bills := uuid.Text(saga.ID("Sales", "bills", "b"))
		copied := sent[2].Headers
		if got, want := copied.Get(header.InvokedSagas), "or_ders@Sales:"+orders+";bills@Sales:"+bills; got != want {
			t.Errorf("%s is %q, want %q", header.InvokedSagas, got, want)
		}
		if got, want := copied.Get(header.SagaStateChange), orders+":New;"+bills+":New"; got != want {
			t.Errorf("%s is %q, want %q", header.SagaStateChange, got, want)
		}
		h := sent[0].Headers
		for name, want := range map[string]string{
			header.EnclosedMessageTypes: "ServiceControl.EndpointPlugin.Messages.SagaState.SagaUpdatedMessage",
			header.ContentType:          "application/json", header.ReplyToAddress: "Sales", header.OriginatingSagaID: "",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		var body map[string]any
		if err := json.Unmarshal(sent[0].Body, &body); err != nil {
			t.Fatal(err)
		}
		results := body["ResultingMessages"].([]any)
		if len(results) != 2 {
			t.Fatalf("resulting messages %v", results)
		}
		first, second := results[0].(map[string]any), results[1].(map[string]any)
		got := map[string]any{
			"id": body["SagaId"], "type": body["SagaType"], "state": body["SagaState"], "new": body["IsNew"], "completed": body["IsCompleted"],
			"endpoint": body["Endpoint"], "initiator": body["Initiator"].(map[string]any)["InitiatingMessageId"],
			"of": body["Initiator"].(map[string]any)["MessageType"], "sent": first["MessageType"], "to": first["Destination"],
			"at once": first["DeliveryAt"], "delay": second["DeliveryDelay"],
		}
		want := map[string]any{
			"id": orders, "type": "or_ders@Sales", "state": `{"Orders":1}`, "new": true, "completed": false, "endpoint": "Sales",
			"initiator": "m-1", "of": "Shop.PlaceOrder", "sent": "Shop.ShipIt", "to": "shipping", "at once": nil, "delay": "1.02:00:00",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if !strings.HasSuffix(body["StartTime"].(string), "Z") {
			t.Errorf("start %v", body["StartTime"])
		}
		var other map[string]any
		if err := json.Unmarshal(sent[1].Body, &other); err != nil || other["ResultingMessages"] == nil {
			t.Errorf("the other report is %s", sent[1].Body)
		}
	})
}

func TestAFailedSagaIsNotAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if sent := audited(t, true, placeOrder{1}); len(sent) != 0 {
			t.Errorf("%d messages in the audit queue", len(sent))
		}
	})
}
