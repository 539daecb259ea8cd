package endpoint_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A forwarded message has all of its attempts at its new endpoint, however often it failed at the
// one before.
func TestAForwardedMessageHasAllOfItsAttempts(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var calls harness.Tally
		next := harness.Sales(broker, failing(&calls))
		next.Name = "next"
		next.Recoverability = recoverability.Config{Immediate: 1, Delayed: 2}
		harness.Start(t, next)
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			return s.Forward(ctx, "next")
		})))
		m := wire("m")
		for name, value := range map[string]string{
			header.Retries: "2", header.RetriesTimestamp: header.FormatTime(time.Now()), header.FirstLevelRetries: "4",
			header.HoldfastFirstFailure: header.FormatTime(time.Now().Add(-48 * time.Hour)),
			header.HoldfastHistory:      `[{"t":"2026-03-01T12:00:00Z","c":"x","e":"y"}]`, header.HoldfastUsedRetries: "1",
			header.HoldfastThrottledFailures: "3", header.HoldfastThrottledSince: header.FormatTime(time.Now()), "Tenant": "acme",
		} {
			m.Headers.Set(name, value)
		}
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(calls.List()); n != 6 {
			t.Errorf("attempted %d times at the new endpoint, want 6", n)
		}
		failed := broker.Messages("error")
		if len(failed) != 1 || failed[0].Headers.Get("Tenant") != "acme" {
			t.Fatalf("the error queue has %v", failed)
		}
		for _, past := range fault.ParseHistory(failed[0].Headers.Get(header.HoldfastFaultHistory)) {
			if past.Class == "x" {
				t.Error("the history tells of the endpoint before")
			}
		}
	})
}

// A reply to another message than the one being handled is not for the saga that sent the latter.
func TestAReplyWithoutASagaIDNamesNoSaga(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return s.Reply(ctx, harness.OrderAccepted(m), endpoint.To("other"), stateful.Header{Name: header.SagaID})
		})))
		m := wire("m")
		m.Headers.Set(header.OriginatingSagaID, "df0bdbd8-8c42-83f5-93e6-915c4ca2d800")
		m.Headers.Set(header.OriginatingSagaType, "Interop.AskingSaga")
		if err := broker.Put("sales", m); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		replies := broker.Messages("other")
		if len(replies) != 1 {
			t.Fatalf("%d replies", len(replies))
		}
		for _, name := range []string{header.SagaID, header.SagaType} {
			if value, set := replies[0].Headers.Lookup(name); set {
				t.Errorf("the reply has %s %q", name, value)
			}
		}
	})
}

// A reply to a request of a saga names the saga, as NServiceBus looks for it; no other message
// does.
func TestAReplyNamesTheSagaThatAsked(t *testing.T) {
	const id, kind = "df0bdbd8-8c42-83f5-93e6-915c4ca2d800", "Interop.AskingSaga, net, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				harness.Start(t, harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
					if err := s.Send(ctx, harness.ShipOrder(m)); err != nil {
						return err
					}
					return s.Reply(ctx, harness.OrderAccepted(m))
				})))
				m := wire("m")
				m.Headers.Set(header.ReplyToAddress, "other")
				want := []string{"", ""}
				if asked {
					m.Headers.Set("NServiceBus.OriginatingSagaId", id)
					m.Headers.Set("NServiceBus.OriginatingSagaType", kind)
					want = []string{id, kind}
				}
				if err := broker.Put("sales", m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				replies, sent := broker.Messages("other"), broker.Messages("shipping")
				if len(replies) != 1 || len(sent) != 1 {
					t.Fatalf("%d replies, %d sent", len(replies), len(sent))
				}
				h := replies[0].Headers
				if diff := cmp.Diff(want, []string{h.Get("NServiceBus.SagaId"), h.Get("NServiceBus.SagaType")}); diff != "" {
					t.Errorf("the reply (-want +got):\n%s", diff)
				}
				if h := sent[0].Headers; h.Get("NServiceBus.SagaId") != "" || h.Get("NServiceBus.SagaType") != "" {
					t.Errorf("another message names a saga: %s", h.AppendJSON(nil))
				}
				for _, name := range []string{"NServiceBus.OriginatingSagaId", "NServiceBus.OriginatingSagaType"} {
					if h.Get(name) != "" {
						t.Errorf("the reply has %s", name)
					}
				}
			})
		})
	}
}
