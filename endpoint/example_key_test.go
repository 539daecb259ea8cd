package endpoint_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type changePrice struct {
	Article string
	Cents   int
}

// The prices of an article are written one after the other, and those of other articles at the same
// time.
func ExampleHandleInOrderBy() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	written := make(chan changePrice)
	ep, err := endpoint.New(endpoint.Config{
		Name: "prices", Transport: &inmemory.Transport{}, Install: true, Concurrency: 8, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[changePrice]("Shop.ChangePrice").To("prices")},
		Handlers: []endpoint.Handler{endpoint.HandleInOrderBy(
			func(m changePrice) string { return m.Article },
			func(_ context.Context, _ *endpoint.Session, m changePrice) error {
				written <- m
				return nil
			},
		)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- ep.Run(ctx) }()
	if err := ep.WaitReady(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for cents := 100; cents <= 300; cents += 100 {
		if err := ep.Send(ctx, changePrice{"lamp", cents}); err != nil {
			fmt.Println(err)
		}
	}
	for range 3 {
		fmt.Println(<-written)
	}
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output:
	// {lamp 100}
	// {lamp 200}
	// {lamp 300}
}
