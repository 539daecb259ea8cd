package otel_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type orderState struct{ Orders int }

func TestSagasAreMeasured(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
		tel := newTelemetry(t)
		conflicts := 1
		place := func(_ context.Context, c *saga.Context[orderState], m harness.PlaceOrder) error {
			if m.ID == "conflict" && conflicts > 0 {
				conflicts--
				return fmt.Errorf("row: %w", transport.ErrConflict)
			}
			if c.State.Orders++; c.State.Orders == 2 {
				c.Complete()
			}
			return nil
		}
		orders := saga.New("orders", saga.Start(func(m harness.PlaceOrder) string { return m.ID }, place))
		cfg := harness.Sales(broker, orders.Handlers()...)
		cfg.Outbox = &inmemory.Transport{}
		ep := tel.start(cfg)
		for _, id := range []string{"1", "1", "1", "2", "conflict"} {
			ep.send(t.Context(), harness.PlaceOrder{ID: id})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		got := tel.about("holdfast.saga.")
		tags := "," + "messaging.system=inmemory}"
		for name, want := range map[string]float64{
			"holdfast.saga.begun{" + common + ",holdfast.saga=orders" + tags:                                      3,
			"holdfast.saga.ended{" + common + ",holdfast.saga=orders" + tags:                                      1,
			"holdfast.saga.ignored{" + common + ",holdfast.saga=orders,holdfast.saga.ignored.reason=ended" + tags: 1,
			"holdfast.saga.conflicts{" + common + ",holdfast.saga=orders" + tags:                                  1,
			"holdfast.saga.wait.count{" + common + ",holdfast.saga=orders" + tags:                                 5,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v, want %v\n%v", name, v, want, got)
			}
		}
	})
}
