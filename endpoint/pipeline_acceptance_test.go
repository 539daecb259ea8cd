package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// These are the cases of NServiceBus's pipeline acceptance tests that no other test has. The table
// of all of them is in docs/conformance.md.

func TestCopiesOfAMessageStayInItsConversation(t *testing.T) {
	for queue, handler := range map[string]endpoint.Handler{
		"audit": heard(&harness.Tally{}, func(harness.PlaceOrder) string { return "" }), "error": failing(&harness.Tally{}),
	} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			cfg := harness.Sales(broker, handler)
			cfg.AuditQueue, cfg.Recoverability = "audit", once
			harness.Start(t, cfg).MustSend(harness.PlaceOrder{}, endpoint.Header(header.ConversationID, "c-1"), endpoint.Header(header.RelatedTo, "m-0"))
			synctest.Wait()
			got := broker.Messages(queue)
			if len(got) != 1 || got[0].Headers.Get(header.ConversationID) != "c-1" || got[0].Headers.Get(header.RelatedTo) != "m-0" {
				t.Errorf("%s: %v", queue, got)
			}
		})
	}
}

// What NServiceBus has in a scope or in a bag is in the context: one per message.
func TestWhatABehaviorPutsInTheContextIsOfOneMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		type unit struct{}
		handler := func(name string) endpoint.Handler {
			return endpoint.Handle(func(ctx context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
				ctx.Value(unit{}).(*harness.Tally).Add(m.ID + " " + name)
				return nil
			})
		}
		var units []*harness.Tally
		cfg := harness.Sales(broker, handler("first"), handler("second"))
		cfg.Concurrency = 1
		cfg.Pipeline.Receive.Use("unit", func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error {
				units = append(units, &harness.Tally{})
				return next(context.WithValue(ctx, unit{}, units[len(units)-1]), in)
			}
		})
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "a"})
		r.MustSend(harness.PlaceOrder{ID: "b"})
		synctest.Wait()
		want := [][]string{{"a first", "a second"}, {"b first", "b second"}}
		if diff := cmp.Diff(want, [][]string{units[0].List(), units[1].List()}); diff != "" {
			t.Error(diff)
		}
	})
}

// observed is sales with a behavior of the Outgoing stage, which runs around the rest of it.
func observed(broker *inmemory.Transport, see func(ctx context.Context, out *pipeline.Outgoing, next func() error) error) endpoint.Config {
	cfg := harness.Sales(broker)
	cfg.Pipeline.Outgoing.Use("see", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
		return func(ctx context.Context, out *pipeline.Outgoing) error {
			return see(ctx, out, func() error { return next(ctx, out) })
		}
	})
	return cfg
}

func TestAnOptionOfTheProgramsOwnReachesBehaviors(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		own := endpoint.OutgoingOption(func(out *pipeline.Outgoing) { out.Properties = map[string]string{"own": "option"} })
		var seen harness.Tally
		r := harness.Start(t, observed(broker, func(_ context.Context, out *pipeline.Outgoing, next func() error) error {
			seen.Add(out.Intent + " " + out.Properties["own"])
			return next()
		}))
		r.MustSend(harness.ShipOrder{}, own)
		r.MustSend(harness.ShipOrder{})
		if err := r.Publish(t.Context(), harness.OrderPlaced{}, own); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"Send option", "Send ", "Publish option"}, seen.List()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOptionsMayBeUsedAgain(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		opts := []endpoint.SendOption{endpoint.To("other"), endpoint.Header("Tenant", "acme")}
		r := harness.Start(t, harness.Sales(broker))
		r.MustSend(harness.ShipOrder{ID: "a"}, opts...)
		r.MustSend(harness.ShipOrder{ID: "b"}, opts...)
		got := broker.Messages("other")
		if len(got) != 2 || got[0].ID == got[1].ID {
			t.Fatalf("sent %v, want two messages, each with an id of its own", got)
		}
		for _, name := range []string{header.MessageID, header.CorrelationID, header.ConversationID} {
			if got[0].Headers.Get(name) == got[1].Headers.Get(name) {
				t.Errorf("both have the same %s", name)
			}
		}
	})
}

// The messages that a behavior sends are separate from the message that the behavior is
// called for.
func TestABehaviorSendsApartFromItsMessage(t *testing.T) {
	for kept, want := range map[bool]string{false: "00:01:00", true: "not sent"} {
		harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
			var r *harness.Running
			r = harness.Start(t, observed(broker, func(ctx context.Context, out *pipeline.Outgoing, next func() error) error {
				if out.Types[0] == "Shop.ShipOrder" {
					return next()
				}
				if err := r.Send(ctx, harness.ShipOrder{ID: "inner"}); err != nil || kept {
					return err
				}
				return next()
			}))
			r.MustSend(harness.PlaceOrder{}, endpoint.To("other"), endpoint.ExpireAfter(time.Minute))
			ttl := "not sent"
			for _, outer := range broker.Messages("other") {
				ttl = outer.Headers.Get(header.TimeToBeReceived)
			}
			inner := broker.Messages("shipping")
			if ttl != want || len(inner) != 1 || string(inner[0].Body) != `{"ID":"inner"}` || inner[0].Headers.Get(header.TimeToBeReceived) != "" {
				t.Errorf("outer: %s, want %s; inner: %v", ttl, want, inner)
			}
		})
	}
}

// A Dispatch behavior is called once for each completed message.
func TestDispatchRunsOncePerCompletedMessage(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var tries, completed harness.Tally
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m harness.PlaceOrder) error {
			if tries.Add(m.ID); m.ID == "never" || len(tries.List()) == 1 {
				return errNo
			}
			return nil
		}))
		cfg.Pipeline.Dispatch.Use("completed", func(next pipeline.Func[*pipeline.Dispatch]) pipeline.Func[*pipeline.Dispatch] {
			return func(ctx context.Context, d *pipeline.Dispatch) error {
				err := next(ctx, d)
				if err == nil && d.Incoming != nil {
					completed.Add(d.Incoming.Message.ID)
				}
				return err
			}
		})
		r := harness.Start(t, cfg)
		for _, id := range strings.Fields("second never first") {
			r.MustSend(harness.PlaceOrder{ID: id}, endpoint.MessageID(id))
			time.Sleep(time.Hour)
		}
		if diff := cmp.Diff([]string{"second", "first"}, completed.List()); diff != "" {
			t.Error(diff)
		}
	})
}
