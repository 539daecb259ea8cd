// Command quickstart is an endpoint that takes an order in and hears that it was placed.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type PlaceOrder struct{ OrderID string }

type OrderPlaced struct{ OrderID string }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true, // creates what is missing at the broker
		Messages: []endpoint.Message{
			endpoint.Command[PlaceOrder]("Shop.PlaceOrder").To("shop"), endpoint.Event[OrderPlaced]("Shop.OrderPlaced"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m PlaceOrder) error {
				return s.Publish(ctx, OrderPlaced(m)) // leaves when the handler has returned nil
			}),
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m OrderPlaced) error {
				fmt.Printf("order %s was placed (attempt %d)\n", m.OrderID, s.Attempt().N)
				stop()
				return nil
			}),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if shop.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := shop.Send(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
}
