package endpoint_test

import (
	"context"
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

// These are the cases of NServiceBus's acceptance tests of delayed delivery that no other test has.
// The table of all of them is in docs/conformance.md.

func TestADelayThatIsOverIsNone(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var handled harness.Tally
		cfg := harness.Sales(broker, heard(&handled, func(m harness.PlaceOrder) string { return m.ID }))
		cfg.Concurrency = 1
		r := harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "past"}, endpoint.At(time.Now().Add(-time.Hour)))
		r.MustSend(harness.PlaceOrder{ID: "now"}, endpoint.After(0))
		synctest.Wait()
		if diff := cmp.Diff([]string{"past", "now"}, handled.List()); diff != "" {
			t.Error(diff)
		}
	})
}

// What a behavior or a handler sends while a delayed message is on its way is not delayed with it.
func TestADelayIsOfOneMessageOnly(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		var r *harness.Running
		cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m harness.PlaceOrder) error {
			return s.Send(ctx, harness.ShipOrder(m))
		}))
		cfg.Pipeline.Outgoing.Use("tell", func(next pipeline.Func[*pipeline.Outgoing]) pipeline.Func[*pipeline.Outgoing] {
			return func(ctx context.Context, out *pipeline.Outgoing) error {
				if out.Types[0] == "Shop.PlaceOrder" {
					r.MustSend(harness.ShipOrder{ID: "told"})
				}
				return next(ctx, out)
			}
		})
		r = harness.Start(t, cfg)
		r.MustSend(harness.PlaceOrder{ID: "7"}, endpoint.After(5*time.Second))
		for _, step := range []struct {
			wait time.Duration
			want []string
		}{
			{0, []string{`{"ID":"told"}`}},
			{5*time.Second - time.Millisecond, []string{`{"ID":"told"}`}},
			{time.Millisecond, []string{`{"ID":"told"}`, `{"ID":"7"}`}},
		} {
			time.Sleep(step.wait)
			synctest.Wait()
			var got []string
			for _, m := range broker.Messages("shipping") {
				got = append(got, string(m.Body))
				if _, delayed := m.Headers.Lookup(header.DeliverAt); delayed {
					t.Errorf("%s says that it was delayed", m.Body)
				}
			}
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("%v later: %s", step.wait, diff)
			}
		}
	})
}
