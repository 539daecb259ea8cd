package endpoint_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A move to any queue that the endpoint itself receives from goes to the configured error queue
// instead.
func TestAMoveToAnOwnQueueGoesToTheErrorQueue(t *testing.T) {
	for _, to := range []string{"sales", "sales-a", "sales.quarantine", "sales.dead"} {
		for _, from := range []string{"sales", "sales-a"} {
			t.Run(from+" to "+to, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					broker.CreateQueues("sales.dead")
					broker.Satellites = []transport.Satellite{{
						Queue: "sales.dead",
						Handle: func(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
							return []transport.Operation{{Message: m, Queue: "sales"}}, nil
						},
					}}
					var calls, told harness.Tally
					cfg := harness.Sales(broker, endpoint.Handle(func(_ context.Context, _ *endpoint.Session, o harness.PlaceOrder) error {
						calls.Add(o.ID)
						time.Sleep(10 * time.Millisecond)
						return errNo
					}))
					cfg.Instance, cfg.InstanceQueue = "a", true
					cfg.Notify = telling(&told)
					cfg.Recoverability.Policy = func(recoverability.Failure) recoverability.Action {
						return recoverability.MoveToError{Queue: to}
					}
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "m"}, endpoint.To(from))
					time.Sleep(time.Minute)
					synctest.Wait()
					if n := len(calls.List()); n != 1 {
						t.Errorf("handled %d times, want once", n)
					}
					if n := len(broker.Messages("error")); n != 1 {
						t.Errorf("%d messages are in the error queue, want 1", n)
					}
					want := []string{"fallback_taken move_to_error", "moved_to_error to error"}
					if diff := cmp.Diff(want, told.List()); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}
