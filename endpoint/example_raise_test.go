package endpoint_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/endpoint/endpointtest"
)

// A domain event is handled at once, in the unit of work of the handler that raises it.
func ExampleSession_Raise() {
	type chargeOrder struct{ OrderID string }
	type sendInvoice struct{ OrderID string }
	type orderCharged struct{ OrderID string } // a domain event: not registered, for it does not leave the process

	cfg := endpoint.Config{
		Messages: []endpoint.Message{
			endpoint.Command[chargeOrder]("Shop.ChargeOrder"),
			endpoint.Command[sendInvoice]("Shop.SendInvoice").To("invoices"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m chargeOrder) error {
				return s.Raise(ctx, orderCharged(m))
			}),
		},
		Raised: []endpoint.Raised{
			endpoint.OnRaised(func(_ context.Context, _ *endpoint.Session, e orderCharged) error {
				fmt.Println("ledger:", e.OrderID) // it would write in the transaction of the session
				return nil
			}),
			endpoint.OnRaised(func(ctx context.Context, s *endpoint.Session, e orderCharged) error {
				return s.Send(ctx, sendInvoice(e))
			}),
		},
	}
	result, err := endpointtest.Handle(context.Background(), cfg, chargeOrder{"4711"})
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Outcome, len(result.Sent), "message")
	// Output:
	// ledger: 4711
	// completed 1 message
}
