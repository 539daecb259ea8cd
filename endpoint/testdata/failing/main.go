// Command failing runs an endpoint whose handlers fail, and prints the headers of the error queue, one message a line. A
// test builds it with -trimpath.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type (
	order   struct{}
	payment struct{}
)

func charge(context.Context, *endpoint.Session, order) error { return errors.New("no money") }

func refund(context.Context, *endpoint.Session, payment) error { panic("no money") }

func main() {
	broker := &inmemory.Transport{}
	moved := make(chan struct{})
	e, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: broker, Install: true, Logger: slog.New(slog.DiscardHandler),
		Messages:       []endpoint.Message{endpoint.Command[order]("order"), endpoint.Command[payment]("payment")},
		Handlers:       []endpoint.Handler{endpoint.Handle(charge), endpoint.Handle(refund)},
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
		Notify:         []func(context.Context, recoverability.Notification){func(context.Context, recoverability.Notification) { moved <- struct{}{} }},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		log.Fatal(err)
	}
	for _, m := range []any{order{}, payment{}} {
		if err := e.SendLocal(ctx, m); err != nil {
			log.Fatal(err)
		}
		<-moved
	}
	write(broker.Messages("error"))
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

func write(messages []*transport.Message) {
	for _, m := range messages {
		fmt.Println(string(m.Headers.AppendJSON(nil)))
	}
}
