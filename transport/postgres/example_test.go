package postgres_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

type ChargeOrder struct {
	OrderID string
	Cents   int
}

type OrderCharged struct{ OrderID string }

// charge writes a row, and it, the event and the end of the command are one transaction.
func charge(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into charges (order_id, cents) values ($1, $2)`, m.OrderID, m.Cents); err != nil {
		return err
	}
	return s.Publish(ctx, OrderCharged{OrderID: m.OrderID})
}

// The program examples/postgres runs such an endpoint.
func ExampleTx() {
	billing, err := endpoint.New(endpoint.Config{ // it connects when it is run
		Name: "billing", Install: true,
		Transport:    &postgres.Transport{URL: "postgres://app:secret@db.example/shop", Schema: "messaging", Lease: time.Minute},
		Transactions: endpoint.SendsAtomicWithReceive, // what postgres.Tx needs
		Messages: []endpoint.Message{
			endpoint.Command[ChargeOrder]("Shop.ChargeOrder"), endpoint.Event[OrderCharged]("Shop.OrderCharged"),
		},
		Handlers: []endpoint.Handler{endpoint.Handle(charge)},
	})
	fmt.Println(billing != nil, err)
	// Output: true <nil>
}

// A URL that cannot be read is not shown: it may hold a password.
func ExampleTransport() {
	db := &postgres.Transport{URL: "postgres://app:half%secret@db.example/shop"}
	_, err := db.Open(context.Background(), transport.Env{Endpoint: "billing"})
	fmt.Println(err)
	// Output: postgres: URL cannot be parsed (it is not shown, it may hold a password): want postgres://user:password@host:5432/database, with special characters in the password percent-encoded
}
