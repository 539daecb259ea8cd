package saga_test

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

type itemAdded struct{ ID string }

// A step raises events: what their functions send belongs to the step, and an error of one undoes
// the step.
func TestAStepRaisesEvents(t *testing.T) {
	inEachMode(t, func(t *testing.T, s *shop) {
		orders := saga.New("orders", saga.Start(placeOrder.key, func(ctx context.Context, c *orderContext, m placeOrder) error {
			c.State.Items++
			return c.Raise(ctx, itemAdded(m))
		}))
		cfg := s.config(orders.Handlers()...)
		cfg.Raised = []endpoint.Raised{endpoint.OnRaised(func(ctx context.Context, session *endpoint.Session, e itemAdded) error {
			if err := session.Send(ctx, askStock(e)); err != nil || e.ID != "bad" {
				return err
			}
			panic("no such item")
		})}
		s.run(cfg)
		s.handle(placeOrder{"bad"}, placeOrder{"7"})
		if sent := s.broker.Messages("stock"); len(sent) != 1 || string(sent[0].Body) != `{"ID":"7"}` {
			t.Errorf("%d messages are sent, want one of order 7", len(sent))
		}
		if failed := s.failures(); len(failed) != 1 || !strings.Contains(failed[0], "no such item") {
			t.Errorf("failures %q", failed)
		}
		if r := s.record("7"); r.Status != transport.RecordActive {
			t.Errorf("the instance is %+v", r)
		}
		if n := s.records(); n.Active != 1 {
			t.Errorf("%d instances, want the one that did not fail", n.Active)
		}
	})
}
