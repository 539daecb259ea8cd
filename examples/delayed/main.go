// Command delayed shows messages that are due later, and how one is called back: each order gets a
// reminder, and that of the order which is paid in time is cancelled. On a durable transport
// the reminders wait in the queue while the program is not running.
//
//	go run ./examples/delayed
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type RemindOfPayment struct{ OrderID string }

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[RemindOfPayment]("Shop.RemindOfPayment")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m RemindOfPayment) error {
				fmt.Printf("order %s is not paid yet\n", m.OrderID)
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
		if err := remind(ctx, shop); err != nil {
			log.Print(err)
			stop()
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func remind(ctx context.Context, shop *endpoint.Endpoint) error {
	paid := RemindOfPayment{OrderID: "4711"}
	var receipt transport.Receipt // text: it can be kept in a database with the order
	if err := shop.SendLocal(ctx, paid, endpoint.After(time.Hour), endpoint.ReceiptIn(&receipt)); err != nil {
		return err
	}
	if err := shop.Cancel(ctx, receipt); err != nil {
		return err
	}
	fmt.Println("order 4711 is paid: its reminder is cancelled")
	if err := shop.Cancel(ctx, receipt); !errors.Is(err, transport.ErrNotFound) {
		return fmt.Errorf("cancelled twice: %w", err) // a delivered reminder is not found either
	}

	unpaid := RemindOfPayment{OrderID: "4712"}
	return shop.SendLocal(ctx, unpaid, endpoint.At(time.Now().Add(100*time.Millisecond)))
}
