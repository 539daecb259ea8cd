// Command quickstart is an endpoint whose handler fails twice and succeeds at the third attempt.
// README.md shows the program from the next line on.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type PlaceOrder struct{ ID string }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	place := func(_ context.Context, s *endpoint.Session, m PlaceOrder) error {
		fmt.Printf("order %s: attempt %d\n", m.ID, s.Attempt().N)
		if s.Attempt().N < 3 {
			return fmt.Errorf("order %s: no payment", m.ID) // the endpoint tries again
		}
		stop() // ends Run when the handler has returned
		return nil
	}
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true, // creates the queues
		Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{endpoint.Handle(place)},
	})
	if err != nil {
		log.Fatal(err)
	}
	m := PlaceOrder{ID: "42"}
	go func() { log.Print("ready: ", shop.WaitReady(ctx), ", sent: ", shop.SendLocal(ctx, m)) }()
	log.Print("stopped: ", shop.Run(ctx))
}
