package endpoint_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// SendLocal sends to the endpoint's own queue, whatever the routes are.
func TestSendLocalIgnoresRoutes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c harness.Tally
		r := harness.Start(t, harness.Sales(broker,
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
				return s.SendLocal(ctx, harness.ShipOrder(m), endpoint.After(time.Hour))
			}),
			heard(&c, func(m harness.ShipOrder) string { return m.ID })))
		if err := r.SendLocal(t.Context(), harness.PlaceOrder{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		if len(c.List()) != 0 {
			t.Error("handled before it was due")
		}
		time.Sleep(2 * time.Minute)
		if diff := cmp.Diff([]string{"7"}, c.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// Forward sends the message as received, together with the other messages of the handler.
func TestForwardSendsTheMessageAsReceived(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		fail := true
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			if err := errors.Join(s.Forward(ctx, "other"), s.Send(ctx, harness.ShipOrder(m))); err != nil || !fail {
				return err
			}
			fail = false
			return errNo
		}))
		harness.Start(t, cfg)
		received := native("Shop.PlaceOrder", "application/json", `{"ID": "7"}`)
		received.Headers.Set("Tenant", "acme")
		if err := broker.Put("sales", received); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := broker.Messages("other")
		if len(got) != 1 || len(broker.Messages("shipping")) != 1 {
			t.Fatalf("%d forwarded, %d sent, want 1 and 1", len(got), len(broker.Messages("shipping")))
		}
		want := received.Headers.Clone()
		want.SetDefault(header.MessageID, received.ID)
		if got[0].ID != received.ID || string(got[0].Body) != string(received.Body) {
			t.Errorf("forwarded %q %s", got[0].ID, got[0].Body)
		}
		if diff := cmp.Diff(string(want.AppendJSON(nil)), string(got[0].Headers.AppendJSON(nil))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestForwardWantsAQueue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got error
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			got = s.Forward(ctx, "")
			return nil
		}))).MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got == nil {
			t.Error("it went nowhere, without an error")
		}
	})
}

func TestHeadersAreAddedTogether(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker))
		r.MustSend(harness.ShipOrder{}, endpoint.Headers(header.New(
			header.Field{Name: "Tenant", Value: "acme"}, header.Field{Name: "Region", Value: "eu"})))
		h := broker.Messages("shipping")[0].Headers
		if h.Get("Tenant") != "acme" || h.Get("Region") != "eu" {
			t.Errorf("the headers are %v", h)
		}
	})
}

// instances are two processes of one endpoint, which ask a third and wait for its replies.
func instances(t *testing.T, broker *inmemory.Transport) (a, b *harness.Running, heardBy *[2]harness.Tally) {
	heardBy = &[2]harness.Tally{}
	instance := func(i int) *harness.Running {
		cfg := harness.Sales(broker, heard(&heardBy[i], func(m harness.OrderAccepted) string { return m.ID }))
		cfg.Instance, cfg.InstanceQueue = string(rune('a'+i)), true
		return harness.Start(t, cfg)
	}
	return instance(0), instance(1), heardBy
}

func TestRepliesAndMessagesToThisInstanceReachNoOther(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		a, b, heardBy := instances(t, broker)
		accepting := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.ShipOrder) error {
			return s.Reply(ctx, harness.OrderAccepted(m))
		}))
		accepting.Name = "shipping"
		harness.Start(t, accepting)
		for range 10 {
			a.MustSend(harness.ShipOrder{ID: "for a"}, endpoint.ReplyToThisInstance())
			b.MustSend(harness.ShipOrder{ID: "for b"}, endpoint.ReplyToThisInstance())
			b.MustSend(harness.OrderAccepted{ID: "for b"}, endpoint.ToThisInstance())
		}
		synctest.Wait()
		for i, want := range []string{strings.Repeat("for a,", 10), strings.Repeat("for b,", 20)} {
			if got := strings.Join(heardBy[i].List(), ",") + ","; got != want {
				t.Errorf("instance %d heard %q", i, got)
			}
		}
	})
}

// A message that fails in the instance queue is delayed to that queue, and its headers name
// the queue.
func TestAnInstanceMessageReturnsToItsInstance(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		cfg := harness.Sales(broker, failing(&calls))
		cfg.Instance, cfg.InstanceQueue = "a", true
		cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = recoverability.None, 1
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{}, endpoint.ToThisInstance())
		time.Sleep(time.Minute)
		got := broker.Messages("error")
		if len(got) != 1 || got[0].Headers.Get(header.FailedQ) != "sales-a" || len(calls.List()) != 2 {
			t.Errorf("%d in the error queue after %d calls", len(got), len(calls.List()))
		}
	})
}

func TestAnInstanceQueueHasToBeNamedAndAskedFor(t *testing.T) {
	for name, change := range map[string]func(*endpoint.Config){
		"it needs an Instance that is the same": func(c *endpoint.Config) { c.InstanceQueue = true },
		"has no queues":                         func(c *endpoint.Config) { c.InstanceQueue, c.SendOnly = true, true },
		`Instance "a@b" has a character`:        func(c *endpoint.Config) { c.InstanceQueue, c.Instance = true, "a@b" },
	} {
		cfg := harness.Sales(&inmemory.Transport{})
		change(&cfg)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New says %v, want %q", err, name)
		}
	}
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := harness.Start(t, harness.Sales(broker))
		for _, opt := range []endpoint.SendOption{endpoint.ToThisInstance(), endpoint.ReplyToThisInstance()} {
			if err := r.Send(t.Context(), harness.PlaceOrder{}, opt); err == nil || !strings.Contains(err.Error(), "set Config.InstanceQueue") {
				t.Errorf("Send says %v", err)
			}
		}
		cfg := harness.Sales(broker)
		cfg.Name, cfg.SendOnly = "front", true
		if err := harness.Start(t, cfg).SendLocal(t.Context(), harness.PlaceOrder{}); err == nil || !strings.Contains(err.Error(), "SendOnly") {
			t.Errorf("SendLocal says %v", err)
		}
	})
}
