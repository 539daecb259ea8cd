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
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func TestSendLocalGoesToTheEndpointsOwnQueueWhateverTheRoutesSay(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var c tally
		r := start(t, sales(broker,
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
				return s.SendLocal(ctx, shipOrder(m), endpoint.After(time.Hour))
			}),
			heard(&c, func(m shipOrder) string { return m.ID })))
		if err := r.SendLocal(t.Context(), placeOrder{ID: "7"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		if len(c.list()) != 0 {
			t.Error("handled before it was due")
		}
		time.Sleep(2 * time.Minute)
		if diff := cmp.Diff([]string{"7"}, c.list()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestForwardSendsTheMessageAsItWasReceivedWithTheOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		fail := true
		cfg := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m placeOrder) error {
			if err := errors.Join(s.Forward(ctx, "other"), s.Send(ctx, shipOrder(m))); err != nil || !fail {
				return err
			}
			fail = false
			return errNo
		}))
		start(t, cfg)
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
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var got error
		start(t, sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ placeOrder) error {
			got = s.Forward(ctx, "")
			return nil
		}))).send(placeOrder{})
		synctest.Wait()
		if got == nil {
			t.Error("it went nowhere, without an error")
		}
	})
}

func TestHeadersAreAddedTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := start(t, sales(broker))
		r.send(shipOrder{}, endpoint.Headers(header.New(
			header.Field{Name: "Tenant", Value: "acme"}, header.Field{Name: "Region", Value: "eu"})))
		h := broker.Messages("shipping")[0].Headers
		if h.Get("Tenant") != "acme" || h.Get("Region") != "eu" {
			t.Errorf("the headers are %v", h)
		}
	})
}

// instances are two processes of one endpoint, which ask a third and wait for its replies.
func instances(t *testing.T, broker *inmemory.Transport) (a, b *running, heardBy *[2]tally) {
	heardBy = &[2]tally{}
	instance := func(i int) *running {
		cfg := sales(broker, heard(&heardBy[i], func(m orderAccepted) string { return m.ID }))
		cfg.Instance, cfg.InstanceQueue = string(rune('a'+i)), true
		return start(t, cfg)
	}
	return instance(0), instance(1), heardBy
}

func TestRepliesAndMessagesToThisInstanceReachNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		a, b, heardBy := instances(t, broker)
		accepting := sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m shipOrder) error {
			return s.Reply(ctx, orderAccepted(m))
		}))
		accepting.Name = "shipping"
		start(t, accepting)
		for range 10 {
			a.send(shipOrder{ID: "for a"}, endpoint.ReplyToThisInstance())
			b.send(shipOrder{ID: "for b"}, endpoint.ReplyToThisInstance())
			b.send(orderAccepted{ID: "for b"}, endpoint.ToThisInstance())
		}
		synctest.Wait()
		for i, want := range []string{strings.Repeat("for a,", 10), strings.Repeat("for b,", 20)} {
			if got := strings.Join(heardBy[i].list(), ",") + ","; got != want {
				t.Errorf("instance %d heard %q", i, got)
			}
		}
	})
}

func TestAMessageThatFailsInTheInstanceQueueGoesBackThereAndSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls tally
		cfg := sales(broker, failing(&calls))
		cfg.Instance, cfg.InstanceQueue = "a", true
		cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = recoverability.None, 1
		r := start(t, cfg)
		r.send(placeOrder{}, endpoint.ToThisInstance())
		time.Sleep(time.Minute)
		got := broker.Messages("error")
		if len(got) != 1 || got[0].Headers.Get(header.FailedQ) != "sales-a" || len(calls.list()) != 2 {
			t.Errorf("%d in the error queue after %d calls", len(got), len(calls.list()))
		}
	})
}

func TestAnInstanceQueueHasToBeNamedAndAskedFor(t *testing.T) {
	for name, change := range map[string]func(*endpoint.Config){
		"it needs an Instance that is the same": func(c *endpoint.Config) { c.InstanceQueue = true },
		"has no queues":                         func(c *endpoint.Config) { c.InstanceQueue, c.SendOnly = true, true },
		`Instance "a@b" has a character`:        func(c *endpoint.Config) { c.InstanceQueue, c.Instance = true, "a@b" },
	} {
		cfg := sales(&inmemory.Transport{})
		change(&cfg)
		if _, err := endpoint.New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New says %v, want %q", err, name)
		}
	}
	inBubble(t, func(t *testing.T, broker *inmemory.Transport) {
		r := start(t, sales(broker))
		for _, opt := range []endpoint.SendOption{endpoint.ToThisInstance(), endpoint.ReplyToThisInstance()} {
			if err := r.Send(t.Context(), placeOrder{}, opt); err == nil || !strings.Contains(err.Error(), "set Config.InstanceQueue") {
				t.Errorf("Send says %v", err)
			}
		}
		cfg := sales(broker)
		cfg.Name, cfg.SendOnly = "front", true
		if err := start(t, cfg).SendLocal(t.Context(), placeOrder{}); err == nil || !strings.Contains(err.Error(), "SendOnly") {
			t.Errorf("SendLocal says %v", err)
		}
	})
}
