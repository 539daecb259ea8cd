package endpoint_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// ServiceControl returns a message with the headers of Holdfast's that describe the fault.
func TestAReturnedMessageLosesItsFaultHeaders(t *testing.T) {
	for name, returned := range map[string]bool{"returned by ServiceControl": true, "moved by hand": false} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				var seen header.Map
				cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
					seen = s.Headers()
					return nil
				}))
				cfg.AuditQueue = "audit"
				harness.Start(t, cfg)
				m := native("Shop.PlaceOrder", "application/json", `{}`)
				m.Headers.Set(header.HoldfastFaultClass, "panic")
				m.Headers.Set(header.HoldfastFaultHistory, "[]")
				m.Headers.Set("Tenant", "a")
				if returned {
					m.Headers.Set(header.RetryUniqueID, "u-1")
				}
				before := m.Headers.Clone()
				if err := broker.Put("sales", m); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				audited := broker.Messages("audit")
				if len(audited) != 1 {
					t.Fatalf("%d audit copies", len(audited))
				}
				if got := faultsOf(audited[0].Headers); got != "" || audited[0].Headers.Get("Tenant") != "a" {
					t.Errorf("the audit copy has %q", got)
				}
				if got := faultsOf(seen); (got != "") == returned || seen.Get("Tenant") != "a" {
					t.Errorf("the handler saw %q", got)
				}
				if string(before.AppendJSON(nil)) != string(m.Headers.AppendJSON(nil)) {
					t.Errorf("the received message was changed")
				}
			})
		})
	}
}

// faultsOf returns the names of the headers of a fault of Holdfast's.
func faultsOf(h header.Map) string {
	var names []string
	for name := range h.All() {
		if strings.HasPrefix(name, "Holdfast.Fault.") {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// NServiceBus stamps a delayed retry so, and ServiceControl computes the critical time from it.
func TestADelayedRetrySaysWhenItIsDue(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var due []string
		cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
			due = append(due, s.Header(header.DeliverAt))
			if len(due) < 3 {
				return errNo
			}
			return nil
		}))
		cfg.Recoverability = recoverability.Config{Immediate: recoverability.None, Delays: recoverability.Delays{Delay: 10 * time.Second}}
		r, began := harness.Start(t, cfg), time.Now()
		r.MustSend(harness.PlaceOrder{})
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []string{"", header.FormatTime(began.Add(10 * time.Second)), header.FormatTime(began.Add(30 * time.Second))}
		if strings.Join(due, ";") != strings.Join(want, ";") {
			t.Errorf("due %q, want %q", due, want)
		}
	})
}

// ServiceControl shows the text before the first comma as the type.
func TestTheFirstOfSeveralTypesIsFollowedByAComma(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var types []string
		cfg := harness.Sales(broker,
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.OrderPlaced) error {
				types = append(types, s.Header(header.EnclosedMessageTypes))
				return errNo
			}),
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ harness.PlaceOrder) error {
				types = append(types, s.Header(header.EnclosedMessageTypes))
				return nil
			}))
		cfg.Recoverability = once
		var failed recoverability.Failure
		cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
			failed = f
			return recoverability.Discard{}
		}
		r := harness.Start(t, cfg)
		if err := r.Publish(t.Context(), harness.OrderPlaced{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.MustSend(harness.PlaceOrder{})
		synctest.Wait()
		if got := strings.Join(types, " | "); got != "Shop.OrderPlaced, Holdfast;Shop.IOrderEvent | Shop.PlaceOrder" {
			t.Errorf("types %q", got)
		}
		if failed.Type != "Shop.OrderPlaced" || !failed.OfType("Shop.IOrderEvent") {
			t.Errorf("a policy sees %q", failed.Type)
		}
	})
}
