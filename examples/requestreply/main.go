// Command requestreply shows a request and its answer: the shop asks the bank to charge a card, and
// handles the reply as a message like any other. What the reply belongs to is in its headers, so
// the shop may be restarted between the two.
//
//	go run ./examples/requestreply
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

type ChargeCard struct {
	OrderID string
	Cents   int
}

type CardCharged struct {
	OrderID  string
	Approved bool
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	broker := &inmemory.Transport{} // the two reach each other through it
	messages := []endpoint.Message{
		endpoint.Command[ChargeCard]("Bank.ChargeCard").To("bank"), endpoint.Response[CardCharged]("Bank.CardCharged"),
	}

	bank, errBank := endpoint.New(endpoint.Config{
		Name: "bank", Transport: broker, Install: true, Messages: messages,
		Handlers: []endpoint.Handler{endpoint.Handle(charge)},
	})
	shop, errShop := endpoint.New(endpoint.Config{
		Name: "shop", Transport: broker, Install: true, Messages: messages,
		Handlers: []endpoint.Handler{
			endpoint.Handle(func(_ context.Context, s *endpoint.Session, m CardCharged) error {
				fmt.Printf("order %s: approved is %t (correlation id %s)\n", m.OrderID, m.Approved, s.Header(header.CorrelationID))
				stop()
				return nil
			}),
		},
	})
	if err := errors.Join(errBank, errShop); err != nil {
		log.Fatal(err)
	}

	go func() {
		if errors.Join(bank.WaitReady(ctx), shop.WaitReady(ctx)) != nil {
			return // Run returns the error
		}
		request := ChargeCard{OrderID: "4711", Cents: 1999}
		if err := shop.Send(ctx, request, endpoint.MessageID("charge-4711")); err != nil {
			log.Print(err)
			stop()
		}
	}()
	if err := endpoint.RunAll(ctx, bank, shop); err != nil {
		log.Fatal(err)
	}
}

// charge answers to wherever the request says: the queue of the endpoint that sent it.
func charge(ctx context.Context, s *endpoint.Session, m ChargeCard) error {
	return s.Reply(ctx, CardCharged{OrderID: m.OrderID, Approved: m.Cents < 100_00})
}
