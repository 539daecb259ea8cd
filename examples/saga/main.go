// Command saga shows a process with a state and a time-out: an order waits for its payment. One
// order is paid, which cancels its time-out, and the other one is cancelled when its time is over.
//
//	go run ./examples/saga
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	PlaceOrder  struct{ OrderID, Customer string }
	OrderPaid   struct{ OrderID string }
	PaymentLate struct{} // a time-out
	ShipOrder   struct{ OrderID, Customer string }
	CancelOrder struct{ OrderID string }
)

// Order is the state of an order while it waits. It is JSON in the database.
type Order struct{ Customer string }

// Policy decides what happens to an order.
type Policy struct{ Patience time.Duration }

func (p Policy) placed(ctx context.Context, c *saga.Context[Order], m PlaceOrder) error {
	c.State.Customer = m.Customer
	return c.SetTimeout(ctx, "payment", PaymentLate{}, endpoint.After(p.Patience))
}

func (p Policy) paid(ctx context.Context, c *saga.Context[Order], m OrderPaid) error {
	c.Complete() // the time-out is cancelled
	return c.SendLocal(ctx, ShipOrder{OrderID: m.OrderID, Customer: c.State.Customer})
}

func (p Policy) late(ctx context.Context, c *saga.Context[Order], _ PaymentLate) error {
	c.Complete()
	return c.SendLocal(ctx, CancelOrder{OrderID: c.Key()})
}

func (p Policy) saga() *saga.Saga[Order] {
	return saga.New("orders",
		saga.Start(func(m PlaceOrder) string { return m.OrderID }, p.placed),
		saga.On(func(m OrderPaid) string { return m.OrderID }, p.paid),
		saga.OnTimeout(p.late))
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ship := func(_ context.Context, _ *endpoint.Session, m ShipOrder) error {
		fmt.Printf("order %s is shipped to %s\n", m.OrderID, m.Customer)
		return nil
	}
	cancel := func(_ context.Context, _ *endpoint.Session, m CancelOrder) error {
		fmt.Printf("order %s is cancelled: it was not paid\n", m.OrderID)
		stop()
		return nil
	}
	policy := Policy{Patience: 2 * time.Second} // three days, in a shop
	sales, err := endpoint.New(endpoint.Config{
		// With PostgreSQL: &postgres.Transport{URL: url}. With another broker: Outbox:
		// &postgres.Transport{URL: url}.
		Name: "sales", Transport: &inmemory.Transport{}, Install: true,
		Transactions: endpoint.SendsAtomicWithReceive,
		Concurrency:  1, // one message after the other, so that an order is placed before it is paid
		Messages: []endpoint.Message{
			endpoint.Command[PlaceOrder]("Shop.PlaceOrder"), endpoint.Command[OrderPaid]("Shop.OrderPaid"),
			endpoint.Command[PaymentLate]("Shop.PaymentLate"), endpoint.Command[ShipOrder]("Shop.ShipOrder"),
			endpoint.Command[CancelOrder]("Shop.CancelOrder"),
		},
		Handlers: append(policy.saga().Handlers(), endpoint.Handle(ship), endpoint.Handle(cancel)),
	})
	if err != nil {
		return err
	}
	go func() {
		if sales.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		for _, m := range []any{PlaceOrder{"4711", "Ada"}, OrderPaid{"4711"}, PlaceOrder{"4712", "Bob"}} {
			if err := sales.SendLocal(ctx, m); err != nil {
				log.Print(err)
			}
		}
	}()
	return sales.Run(ctx)
}
