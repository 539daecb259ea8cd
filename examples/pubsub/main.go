// Command pubsub shows an event that reaches all who want it: billing subscribes to OrderPlaced,
// the audit to its base type OrderEvent and so to every event of an order. The shop knows neither
// of them.
//
//	go run ./examples/pubsub
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// OrderEvent is what all events of an order have in common. Who handles it gets these fields of any
// message that names it as its base type.
type OrderEvent struct{ OrderID string }

type OrderPlaced struct {
	OrderEvent
	Cents int
}

type OrderCancelled struct{ OrderEvent }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var handled sync.WaitGroup
	handled.Add(3)

	broker := &inmemory.Transport{}
	messages := []endpoint.Message{
		endpoint.Event[OrderEvent]("Shop.OrderEvent"),
		endpoint.Event[OrderPlaced]("Shop.OrderPlaced", "Shop.OrderEvent"), // its name, then its base types
		endpoint.Event[OrderCancelled]("Shop.OrderCancelled", "Shop.OrderEvent"),
	}
	member := func(name string, handlers ...endpoint.Handler) *endpoint.Endpoint {
		e, err := endpoint.New(endpoint.Config{
			Name: name, Transport: broker, Install: true, Messages: messages,
			Handlers: handlers, // an endpoint subscribes to what it handles
			SendOnly: len(handlers) == 0,
		})
		if err != nil {
			log.Fatal(err)
		}
		return e
	}
	shop := member("shop")
	billing := member("billing", endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m OrderPlaced) error {
		fmt.Printf("billing: order %s costs %d cents\n", m.OrderID, m.Cents)
		handled.Done()
		return nil
	}))
	audit := member("audit", endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m OrderEvent) error {
		fmt.Printf("audit: something happened to order %s\n", m.OrderID)
		handled.Done()
		return nil
	}))

	go func() {
		defer stop()
		for _, e := range []*endpoint.Endpoint{shop, billing, audit} {
			if e.WaitReady(ctx) != nil {
				return // Run returns the error
			}
		}
		placed := OrderPlaced{OrderEvent: OrderEvent{OrderID: "4711"}, Cents: 1999}
		cancelled := OrderCancelled{OrderEvent{OrderID: "4712"}}
		if err := errors.Join(shop.Publish(ctx, placed), shop.Publish(ctx, cancelled)); err != nil {
			log.Print(err)
			return
		}
		handled.Wait()
	}()
	if err := endpoint.RunAll(ctx, shop, billing, audit); err != nil {
		log.Fatal(err)
	}
}
