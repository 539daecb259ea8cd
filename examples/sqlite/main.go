// Command sqlite shows a handler's own write that is one with its message: the row of the charge,
// the end of the command and the event that it causes happen together or not at all. The queues and
// the table are in one file.
//
//	go run ./examples/sqlite
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

type ChargeOrder struct{ OrderID string }

type OrderCharged struct{ OrderID string }

func main() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is among the temporary files
	if err := run(context.Background(), filepath.Join(dir, "billing.db")); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, path string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // nothing is written any more
	if _, err := db.ExecContext(ctx, `create table charges (order_id text)`); err != nil {
		return err
	}

	charge := func(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
		// The function runs when the handlers have returned nil: only one can write to a file at a
		// time.
		err := sqlite.OnCommit(ctx, s, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `insert into charges (order_id) values (?)`, m.OrderID)
			return err
		})
		if err != nil {
			return err
		}
		if err := s.Publish(ctx, OrderCharged(m)); err != nil {
			return err
		}
		if s.Attempt().N == 1 {
			return errors.New("the first attempt fails: no row, no event")
		}
		return nil
	}
	charged := func(ctx context.Context, _ *endpoint.Session, m OrderCharged) error {
		defer stop()
		var rows int
		err := db.QueryRowContext(ctx, `select count(*) from charges where order_id = ?`, m.OrderID).Scan(&rows)
		fmt.Printf("order %s was charged, rows: %d\n", m.OrderID, rows)
		return err
	}
	billing, err := endpoint.New(endpoint.Config{
		Name: "billing", Transport: &sqlite.Transport{Path: path}, Install: true,
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
