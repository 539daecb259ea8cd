package endpoint_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/harness"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A handler that ends the transaction of its message gets an error, and the endpoint ends it with
// the message.
func TestAHandlerCannotEndTheTransactionOfItsMessage(t *testing.T) {
	for name, end := range map[string]func(context.Context, transport.Tx) error{
		"complete": func(ctx context.Context, tx transport.Tx) error { return tx.Complete(ctx, nil) },
		"rollback": func(ctx context.Context, tx transport.Tx) error { return tx.Rollback(ctx) },
	} {
		for _, fails := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " fails ", fails), func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, broker *inmemory.Transport) {
					var calls, refused, written harness.Tally
					cfg := harness.Sales(broker, endpoint.Handle(func(ctx context.Context, s *endpoint.Session, o harness.PlaceOrder) error {
						calls.Add(o.ID)
						if err := inmemory.OnCommit(ctx, s, func() { written.Add(o.ID) }); err != nil {
							t.Error(err)
						}
						own, err := s.Tx(ctx)
						if err != nil {
							t.Error(err)
						}
						tx, ok := transport.TxOf[transport.Tx](own)
						if !ok {
							t.Error("there is no transaction")
						}
						if err := end(ctx, tx); err != nil {
							refused.Add(err.Error())
						}
						if fails {
							return errNo
						}
						return nil
					}))
					cfg.Transactions, cfg.Recoverability = endpoint.SendsAtomicWithReceive, once
					harness.Start(t, cfg).MustSend(harness.PlaceOrder{ID: "m"})
					time.Sleep(time.Minute)
					synctest.Wait()
					wantWritten, wantFailed := 1, 0
					if fails {
						wantWritten, wantFailed = 0, 1
					}
					if got := len(written.List()); got != wantWritten {
						t.Errorf("written %d times, want %d", got, wantWritten)
					}
					if got := len(broker.Messages("error")); got != wantFailed {
						t.Errorf("%d messages are in the error queue, want %d", got, wantFailed)
					}
					if got := refused.List(); len(calls.List()) != 1 || len(got) != 1 || !strings.Contains(got[0], "the endpoint ends the transaction") {
						t.Errorf("%d calls, errors %q", len(calls.List()), got)
					}
				})
			})
		}
	}
}
