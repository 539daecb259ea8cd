package endpoint_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// Writes of OnFinalFailure that the database refuses as in an outage, while it stores others, keep
// the message from its error queue for ten deliveries. In an outage they are kept.
func TestWritesOfAFinalFailureThatCannotBeStored(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("outage %t", down), func(t *testing.T) {
			withOutbox(t, func(t *testing.T, broker, db *inmemory.Transport) {
				var away, next atomic.Bool
				var calls atomic.Int32
				var written harness.Tally
				db.Fail = func(verb, _ string) error {
					if verb == "Store" && (next.CompareAndSwap(true, false) || away.Load()) {
						return fmt.Errorf("%w: canceling statement due to statement timeout", transport.ErrUnreachable)
					}
					return nil
				}
				cfg := harness.Sales(broker, endpoint.Handle(func(context.Context, *endpoint.Session, harness.PlaceOrder) error {
					return errNo
				}))
				cfg.Outbox, cfg.Recoverability = db, once
				cfg.OnFinalFailure = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
					calls.Add(1)
					next.Store(!down)
					return inmemory.OnCommit(ctx, s, func() { written.Add("") })
				}
				r := harness.Start(t, cfg)
				away.Store(down)
				r.MustSend(harness.PlaceOrder{ID: "1"})
				pass(time.Hour)
				if failed := len(broker.Messages("error")); (failed == 1) == down || !down && calls.Load() != 10 {
					t.Errorf("%d messages failed after %d calls", failed, calls.Load())
				}
				if away.Store(false); !down {
					return
				}
				pass(time.Minute)
				if failed := len(broker.Messages("error")); failed != 1 || len(written.List()) != 1 {
					t.Errorf("%d messages failed, and %d were written, want 1 and 1", failed, len(written.List()))
				}
			})
		})
	}
}
