package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// An endpoint with an outbox. A program has, for example, a rabbitmq.Transport and a
// postgres.Transport in the place of broker and database, and its handlers write in the transaction
// of postgres.Tx.
func ExampleConfig_outbox() {
	ctx, stop := context.WithCancel(context.Background())
	broker, database := &inmemory.Transport{}, &inmemory.Transport{}
	messages := []endpoint.Message{
		endpoint.Command[PlaceOrder]("Shop.PlaceOrder").To("shop"), endpoint.Event[OrderPlaced]("Shop.OrderPlaced"),
	}
	place := func(ctx context.Context, s *endpoint.Session, m PlaceOrder) error {
		write := func() { fmt.Println("the row of order", m.OrderID) }
		if err := inmemory.OnCommit(ctx, s, write); err != nil {
			return err
		}
		if err := s.Publish(ctx, OrderPlaced(m)); err != nil {
			return err
		}
		if s.Attempt().N == 1 {
			return errors.New("the first attempt fails: no row, no event")
		}
		return nil // the endpoint commits the row, the event, and the fact that the message was handled
	}
	placed := func(_ context.Context, _ *endpoint.Session, m OrderPlaced) error {
		fmt.Println("the event of order", m.OrderID)
		stop()
		return nil
	}
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: broker, Outbox: database, Install: true, Messages: messages,
		Handlers: []endpoint.Handler{endpoint.Handle(place), endpoint.Handle(placed)},
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
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the row of order 4711
	// the event of order 4711
}

// A message that its sender sends twice is handled once, because its id is remembered.
func ExampleConfig_remember() {
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Outbox: &inmemory.Transport{}, Install: true, Concurrency: 1,
		Remember: 3 * 24 * time.Hour, // default: 7 days
		Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder").To("shop")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m PlaceOrder) error {
				fmt.Println("order", m.OrderID)
				if m.OrderID == "4712" {
					stop()
				}
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
		for _, order := range []string{"4711", "4711", "4712"} {
			if err := shop.Send(ctx, PlaceOrder{OrderID: order}, endpoint.MessageID("order-"+order)); err != nil {
				log.Print(err)
			}
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order 4711
	// order 4712
}

// Sending succeeds while the broker is away: the message is stored in the database, and leaves when
// the broker is back.
func ExampleViaOutbox() {
	ctx, stop := context.WithCancel(context.Background())
	var away atomic.Bool
	broker := &inmemory.Transport{Fail: func(verb, _ string) error {
		if away.Load() && verb == "Dispatch" {
			return transport.ErrUnreachable
		}
		return nil
	}}
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: broker, Outbox: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder").To("shop")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m PlaceOrder) error {
				fmt.Println("order", m.OrderID)
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
		away.Store(true)
		err := shop.Send(ctx, PlaceOrder{OrderID: "4711"})
		fmt.Println("refused:", errors.Is(err, transport.ErrUnreachable))
		if err := shop.Send(ctx, PlaceOrder{OrderID: "4712"}, endpoint.ViaOutbox()); err != nil {
			log.Print(err)
		}
		away.Store(false)
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// refused: true
	// order 4712
}
