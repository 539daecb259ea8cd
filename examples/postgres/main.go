// Command postgres shows a handler's own write that is one with its message: the row of the charge,
// the end of the command and the event that it causes are one transaction of PostgreSQL, where the
// queues are too.
//
//	POSTGRES_URL=postgres://user:password@localhost:5432/shop go run ./examples/postgres
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

type ChargeOrder struct{ OrderID string }

type OrderCharged struct{ OrderID string }

func main() {
	if err := run(context.Background(), os.Getenv("POSTGRES_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(ctx, `create schema example; create table example.charges (order_id text)`); err != nil {
		return err
	}
	defer db.Exec(context.WithoutCancel(ctx), `drop schema example cascade`) //nolint:errcheck // it leaves nothing behind

	charge := func(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
		tx, err := postgres.Tx(ctx, s)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into example.charges (order_id) values ($1)`, m.OrderID); err != nil {
			return err
		}
		if err := s.Publish(ctx, OrderCharged(m)); err != nil {
			return err
		}
		if s.Attempt().N == 1 {
			return errors.New("the first attempt fails: no row, no event")
		}
		return nil // the endpoint commits
	}
	charged := func(ctx context.Context, _ *endpoint.Session, m OrderCharged) error {
		defer stop()
		var rows int
		err := db.QueryRow(ctx, `select count(*) from example.charges where order_id = $1`, m.OrderID).Scan(&rows)
		fmt.Fprintf(out, "order %s was charged, rows: %d\n", m.OrderID, rows)
		return err
	}
	billing, err := endpoint.New(endpoint.Config{
		Name: "billing", Transport: &postgres.Transport{URL: url, Schema: "example"}, Install: true,
		Transactions: endpoint.SendsAtomicWithReceive,
		Messages: []endpoint.Message{
			endpoint.Command[ChargeOrder]("Shop.ChargeOrder"), endpoint.Event[OrderCharged]("Shop.OrderCharged"),
		},
		Handlers: []endpoint.Handler{endpoint.Handle(charge), endpoint.Handle(charged)},
	})
	if err != nil {
		return err
	}
	go func() {
		if billing.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := billing.SendLocal(ctx, ChargeOrder{OrderID: "4711"}); err != nil {
			log.Print(err)
		}
	}()
	return billing.Run(ctx)
}
