package sqlserver_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlserver"
)

type ChargeOrder struct {
	OrderID string
	Cents   int
}

type OrderCharged struct{ OrderID string }

// charge writes a row, and it, the event and the end of the command are one transaction.
func charge(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
	tx, err := sqlserver.Tx(ctx, s)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, cents) VALUES (@p1, @p2)`, m.OrderID, m.Cents); err != nil {
		return err
	}
	return s.Publish(ctx, OrderCharged{OrderID: m.OrderID})
}

func ExampleTx() {
	billing, err := endpoint.New(endpoint.Config{ // it connects when it is run
		Name: "billing", Install: true,
		Transport:    &sqlserver.Transport{URL: "sqlserver://app:secret@db.example:1433?database=shop", Schema: "messaging"},
		Transactions: endpoint.SendsAtomicWithReceive, // what sqlserver.Tx needs
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
	db := &sqlserver.Transport{URL: "sqlserver://app:half%secret@db.example"}
	_, err := db.Open(context.Background(), transport.Env{Endpoint: "billing"})
	fmt.Println(err)
	// Output: sqlserver: URL cannot be parsed (it is not shown, it may hold a password): want sqlserver://user:password@host:1433?database=name, with special characters in the password percent-encoded
}
