package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// While the database is away, messages wait for it instead of using up their retries.
func ExampleConfig_rateLimit() {
	ctx, stop := context.WithCancel(context.Background())
	var database, handled atomic.Int32 // is it there, and for how many
	shop, err := endpoint.New(endpoint.Config{
		Name:      "shop",
		Transport: &inmemory.Transport{},
		Install:   true,
		Logger:    slog.New(slog.DiscardHandler),
		Messages:  []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(context.Context, *endpoint.Session, PlaceOrder) error {
				if database.Load() == 0 {
					return errors.New("no database")
				}
				if handled.Add(1) == 20 {
					stop()
				}
				return nil
			}),
		},
		Recoverability: recoverability.Config{
			RateLimit: recoverability.RateLimit{After: 10, Delay: 20 * time.Millisecond},
		},
		Notify: []func(context.Context, recoverability.Notification){
			func(_ context.Context, n recoverability.Notification) {
				switch n.Kind {
				case recoverability.RateLimitStarted:
					fmt.Println("limited")
					database.Store(1) // it comes back
				case recoverability.RateLimitEnded:
					fmt.Println("no longer limited")
				case recoverability.MovedToError:
					fmt.Println("lost:", n.Failure.MessageID)
				default:
				}
			},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if shop.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		for n := range 20 {
			if err := shop.SendLocal(ctx, PlaceOrder{OrderID: fmt.Sprint(n)}); err != nil {
				log.Print(err)
			}
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(handled.Load(), "handled")
	// Output:
	// limited
	// no longer limited
	// 20 handled
}

// A paused endpoint leaves its messages at the broker, and sends as before.
func ExampleEndpoint_Pause() {
	ctx, stop := context.WithCancel(context.Background())
	handled := make(chan string)
	shop, err := endpoint.New(endpoint.Config{
		Name:      "shop",
		Transport: &inmemory.Transport{},
		Install:   true,
		Logger:    slog.New(slog.DiscardHandler),
		Messages:  []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m PlaceOrder) error {
				handled <- m.OrderID
				return nil
			}),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer stop()
		if shop.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := shop.Pause(ctx); err != nil {
			log.Print(err)
		}
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
		fmt.Println(shop.Health().Reasons)
		if err := errors.Join(shop.SetConcurrency(1), shop.Resume(ctx)); err != nil {
			log.Print(err)
		}
		fmt.Println("handled", <-handled)
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// [receiving from "shop" is paused]
	// handled 4711
}
