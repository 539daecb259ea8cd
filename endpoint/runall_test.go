package endpoint_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

func shipIt(context.Context, *endpoint.Session, rushOrder) error { return nil }

// Two endpoints of one name on one transport receive each other's messages, and move them to the
// error queue.
func TestRunAllRefusesOneNameForTwoEndpoints(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(second *endpoint.Config)
		refused bool
	}{
		"other handlers":    {func(*endpoint.Config) {}, true},
		"another name":      {func(c *endpoint.Config) { c.Name = "shipping" }, false},
		"another transport": {func(c *endpoint.Config) { c.Transport = &inmemory.Transport{} }, false},
		"an instance":       {func(c *endpoint.Config) { c.Handlers = c.Handlers[:1] }, false},
		"send-only":         {func(c *endpoint.Config) { c.Handlers, c.SendOnly = nil, true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
				first := harness.Sales(broker, endpoint.Handle(placeNothing))
				first.Messages = append(first.Messages, endpoint.Command[rushOrder]("Shop.Rush"))
				second := first
				second.Handlers = append(second.Handlers[:1:1], endpoint.Handle(shipIt))
				test.change(&second)
				var all []*endpoint.Endpoint
				for _, cfg := range []endpoint.Config{first, second} {
					e, err := endpoint.New(cfg)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, e)
				}
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				err := endpoint.RunAll(ctx, all...)
				if refused := err != nil && strings.Contains(err.Error(), `endpoint "sales": two endpoints of RunAll have that name`); refused != test.refused {
					t.Errorf("refused: %v, want %v: %v", refused, test.refused, err)
				}
				if ready := all[0].WaitReady(ctx); test.refused && (ready == nil || ready.Error() != err.Error()) {
					t.Errorf("WaitReady returns %v, want the error of RunAll", ready)
				}
			})
		})
	}
}

// hooked is a transport of a user's, whose type can be compared and whose values cannot.
type hooked struct {
	*inmemory.Transport
	hooks any
}

// Transports that cannot be compared are taken for different ones.
func TestRunAllComparesNoOddTransports(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var all []*endpoint.Endpoint
		for range 2 {
			e, err := endpoint.New(harness.Sales(hooked{broker, []string{"audit"}}, endpoint.Handle(placeNothing)))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := endpoint.RunAll(ctx, all...); err != nil {
			t.Error(err)
		}
	})
}

func placeNothing(context.Context, *endpoint.Session, harness.PlaceOrder) error { return nil }

// The first message without a handler is a sign that another program receives from the queue.
func TestTheFirstForeignMessageNamesTheCause(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var out harness.Log
		broker.CreateQueues("sales", "error")
		cfg := harness.Sales(broker, endpoint.Handle(placeNothing))
		cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
		for range 3 {
			m := wire("m")
			m.Headers.Set(header.EnclosedMessageTypes, "Shop.Unknown")
			if err := broker.Put("sales", m); err != nil {
				t.Fatal(err)
			}
		}
		r := harness.Start(t, cfg)
		synctest.Wait()
		r.End()
		if n := strings.Count(out.String(), "another program with the name of this endpoint may receive from this queue"); n != 1 {
			t.Errorf("%d lines name the cause, want 1:\n%s", n, out.String())
		}
		if n := len(broker.Messages("error")); n != 3 {
			t.Errorf("%d messages in the error queue, want 3", n)
		}
	})
}
