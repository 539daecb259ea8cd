// Command twotransports runs two endpoints on two transports in one process, each with a receive
// loop and retries of its own: orders are taken from a file of SQLite, where they survive whatever
// happens; charging them is work for another queue, which is in memory, or in RabbitMQ when
// AMQP_URL is set.
//
//	go run ./examples/twotransports
//	AMQP_URL=amqp://guest:guest@localhost:5672/ go run ./examples/twotransports
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type PlaceOrder struct{ OrderID string }

type ChargeOrder struct{ OrderID string }

func main() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is among the temporary files
	var second transport.Transport = &inmemory.Transport{}
	if url := os.Getenv("AMQP_URL"); url != "" {
		second = &rabbitmq.Transport{URL: url}
	}
	if err := run(context.Background(), &sqlite.Transport{Path: filepath.Join(dir, "orders.db")}, second); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, first, second transport.Transport) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	charging, errCharging := endpoint.New(endpoint.Config{
		Name: "charging", Transport: second,
		Recoverability: recoverability.Config{Immediate: 3, Delayed: recoverability.None},
		Messages:       []endpoint.Message{endpoint.Command[ChargeOrder]("Shop.ChargeOrder")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ ChargeOrder) error {
			err := succeedAt(4, s, "charging")
			if err == nil {
				stop()
			}
			return err
		})},
	})
	orders, errOrders := endpoint.New(endpoint.Config{
		Name: "orders", Transport: first,
		Recoverability: recoverability.Config{Immediate: 1, Delayed: recoverability.None},
		Messages:       []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m PlaceOrder) error {
			if err := succeedAt(2, s, "orders"); err != nil {
				return err
			}
			// No transaction spans two brokers: after a crash this is sent again, under the same
			// id.
			return charging.SendLocal(ctx, ChargeOrder(m), endpoint.MessageID("charge-"+m.OrderID))
		})},
	})
	if err := errors.Join(errCharging, errOrders); err != nil {
		return err
	}
	// What cannot be reached shows here, before either starts.
	if err := errors.Join(charging.Install(ctx), orders.Install(ctx)); err != nil {
		return err
	}
	go func() {
		if errors.Join(charging.WaitReady(ctx), orders.WaitReady(ctx)) != nil {
			return // Run returns the error
		}
		if err := orders.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
			stop()
		}
	}()
	return endpoint.RunAll(ctx, charging, orders)
}

func succeedAt(attempt int, s *endpoint.Session, name string) error {
	fmt.Printf("%s: attempt %d\n", name, s.Attempt().N)
	if s.Attempt().N < attempt {
		return errors.New("not yet")
	}
	return nil
}
