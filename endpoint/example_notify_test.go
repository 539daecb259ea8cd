package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// A function is notified of the actions on failed messages.
func ExampleConfig_notify() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true, Concurrency: 1,
		Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(context.Context, *endpoint.Session, PlaceOrder) error {
				return recoverability.Unrecoverable(errors.New("no such article"))
			}),
		},
		Notify: []func(context.Context, recoverability.Notification){
			func(_ context.Context, n recoverability.Notification) {
				switch n.Kind {
				case recoverability.ImmediateRetry, recoverability.DelayedRetry:
					fmt.Println(n.Failure.MessageID, "will be tried again for the", n.Retry, "time")
				case recoverability.MovedToError:
					fmt.Println(n.Failure.MessageID, "is in", n.To, "because it is", recoverability.Class(n.Failure.Err))
					stop()
				default: // there are more
				}
			},
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	go sendFirst(ctx, shop)
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: m-1 is in error because it is unrecoverable
}

// When an order is given up, its buyer hears of it: exactly when it goes to the error queue.
func ExampleConfig_onFinalFailure() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{
			endpoint.Command[PlaceOrder]("Shop.PlaceOrder"), endpoint.Command[RemindBuyer]("Shop.RemindBuyer"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(context.Context, *endpoint.Session, PlaceOrder) error {
				return recoverability.Unrecoverable(errors.New("no such article"))
			}),
			endpoint.Handle(func(context.Context, *endpoint.Session, RemindBuyer) error {
				fmt.Println("the order could not be placed")
				stop()
				return nil
			}),
		},
		OnFinalFailure: func(ctx context.Context, s *endpoint.Session, f recoverability.Failure) error {
			return s.SendLocal(ctx, RemindBuyer{OrderID: f.MessageID})
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	go sendFirst(ctx, shop)
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: the order could not be placed
}

func sendFirst(ctx context.Context, shop *endpoint.Endpoint) {
	if shop.WaitReady(ctx) != nil {
		return // Run returns the error
	}
	if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}, endpoint.MessageID("m-1")); err != nil {
		log.Print(err)
	}
}
