package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// The messages of the examples.
type (
	PlaceOrder  struct{ OrderID string }
	OrderPlaced struct{ OrderID string }
	RemindBuyer struct{ OrderID string }
	AskPrice    struct{ Article string }
	PriceIs     struct{ Cents int }
)

// A complete endpoint. On another broker only Transport differs.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name:      "shop",
		Transport: &inmemory.Transport{},
		Install:   true, // create the queues that are missing
		Messages:  []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m PlaceOrder) error {
				fmt.Printf("order %s, attempt %d\n", m.OrderID, s.Attempt().N)
				stop() // an error instead would have the message tried again
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
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
	// Output: order 4711, attempt 1
}

// An event goes to every endpoint that has a handler for it.
func ExampleEndpoint_Publish() {
	ctx, stop := context.WithCancel(context.Background())
	broker := &inmemory.Transport{}
	events := []endpoint.Message{endpoint.Event[OrderPlaced]("Shop.OrderPlaced")}
	shop, err := endpoint.New(endpoint.Config{Name: "shop", Transport: broker, Messages: events, SendOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	billing, err := endpoint.New(endpoint.Config{
		Name: "billing", Transport: broker, Messages: events, Install: true,
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m OrderPlaced) error {
				fmt.Println("bill for order", m.OrderID)
				stop()
				return nil
			}),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if errors.Join(shop.WaitReady(ctx), billing.WaitReady(ctx)) != nil {
			return // Run returns the error
		}
		if err := shop.Publish(ctx, OrderPlaced{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := endpoint.RunAll(ctx, shop, billing); err != nil {
		log.Fatal(err)
	}
	// Output: bill for order 4711
}

// A reply goes to the endpoint that asked: it handles the answer as a message of its own.
func ExampleSession_Reply() {
	ctx, stop := context.WithCancel(context.Background())
	broker := &inmemory.Transport{}
	messages := []endpoint.Message{endpoint.Command[AskPrice]("Shop.AskPrice").To("pricing"), endpoint.Response[PriceIs]("Shop.PriceIs")}
	pricing, err := endpoint.New(endpoint.Config{
		Name: "pricing", Transport: broker, Messages: messages, Install: true,
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m AskPrice) error {
				return s.Reply(ctx, PriceIs{Cents: 100 * len(m.Article)})
			}),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	web, err := endpoint.New(endpoint.Config{
		Name: "web", Transport: broker, Messages: messages, Install: true,
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m PriceIs) error {
				fmt.Println("it costs", m.Cents, "cents")
				stop()
				return nil
			}),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if errors.Join(pricing.WaitReady(ctx), web.WaitReady(ctx)) != nil {
			return // Run returns the error
		}
		if err := web.Send(ctx, AskPrice{Article: "lamp"}); err != nil {
			log.Print(err)
		}
	}()
	if err := endpoint.RunAll(ctx, pricing, web); err != nil {
		log.Fatal(err)
	}
	// Output: it costs 400 cents
}

// A handler sends a message that is due later. Like all that it sends, it leaves when the handler
// has returned nil.
func ExampleAfter() {
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{
			endpoint.Command[PlaceOrder]("Shop.PlaceOrder"), endpoint.Command[RemindBuyer]("Shop.RemindBuyer"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m PlaceOrder) error {
				fmt.Println("order", m.OrderID)
				return s.SendLocal(ctx, RemindBuyer(m), endpoint.After(20*time.Millisecond))
			}),
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m RemindBuyer) error {
				fmt.Println("remember order", m.OrderID)
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
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// order 4711
	// remember order 4711
}

// traced is a behavior: it runs around every call of a handler.
func traced(next pipeline.Func[*pipeline.Invoke]) pipeline.Func[*pipeline.Invoke] {
	return func(ctx context.Context, in *pipeline.Invoke) error {
		fmt.Printf("before %s\n", in.Type)
		err := next(ctx, in)
		fmt.Printf("after %s: %v\n", in.Type, err)
		return err
	}
}

// Behaviors are put into the stages of the pipeline by name.
func ExampleConfig_behavior() {
	ctx, stop := context.WithCancel(context.Background())
	cfg := endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true,
		Messages: []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m PlaceOrder) error {
				fmt.Println("order", m.OrderID)
				stop()
				return nil
			}),
		},
	}
	cfg.Pipeline.Invoke.Use("trace", traced)
	shop, err := endpoint.New(cfg)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if shop.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before Shop.PlaceOrder
	// order 4711
	// after Shop.PlaceOrder: <nil>
}

var errBusy = errors.New("the bank is busy")

// patient retries later, as often as it takes, while the bank is busy. For the rest it goes by the
// numbers.
func patient(f recoverability.Failure) recoverability.Action {
	if errors.Is(f.Err, errBusy) {
		return recoverability.Delay{For: 10 * time.Millisecond}
	}
	return recoverability.Config{Immediate: 2}.Decide(f)
}

// A policy decides what happens to a message that failed.
func ExampleConfig_recoverability() {
	ctx, stop := context.WithCancel(context.Background())
	tries := 0
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true,
		Recoverability: recoverability.Config{Policy: patient},
		Logger:         slog.New(slog.DiscardHandler), // it would tell of the retries
		Messages:       []endpoint.Message{endpoint.Command[PlaceOrder]("Shop.PlaceOrder")},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m PlaceOrder) error {
				if tries++; tries < 3 {
					return errBusy
				}
				fmt.Printf("order %s at try %d\n", m.OrderID, tries)
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
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: order 4711 at try 3
}

// aboutAnOrder is implemented by messages, as any interface is.
type aboutAnOrder interface{ Order() string }

func (m PlaceOrder) Order() string  { return m.OrderID }
func (m OrderPlaced) Order() string { return m.OrderID }

// A handler of an interface is called for all messages that implement it, in its place among
// the others.
func ExampleHandle_interface() {
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Install: true, Concurrency: 1,
		Messages: []endpoint.Message{
			endpoint.Command[PlaceOrder]("Shop.PlaceOrder"), endpoint.Event[OrderPlaced]("Shop.OrderPlaced"),
		},
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m aboutAnOrder) error {
				fmt.Printf("%T %s\n", m, m.Order())
				return nil
			}),
			endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m PlaceOrder) error {
				return s.Publish(ctx, OrderPlaced(m))
			}),
			endpoint.Handle(func(_ context.Context, _ *endpoint.Session, _ OrderPlaced) error {
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
		if err := shop.SendLocal(ctx, PlaceOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// *endpoint_test.PlaceOrder 4711
	// *endpoint_test.OrderPlaced 4711
}
