package acceptance_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// What a program writes outside handlers, such as for a web request, and what it sends over a
// broker are one transaction of the outbox's database.
func ExampleIn_outbox() {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.db")
	ctx, stop := context.WithCancel(context.Background())
	shop, err := endpoint.New(endpoint.Config{
		Name: "shop", Transport: &inmemory.Transport{}, Outbox: &sqlite.Transport{Path: path}, Install: true,
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
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	request := func(order string, accepted bool) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after Commit
		// The program's own statements in tx come here.
		if err := shop.Send(ctx, PlaceOrder{OrderID: order}, endpoint.In(tx)); err != nil || !accepted {
			return err
		}
		return tx.Commit()
	}
	go func() {
		if shop.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		if err := request("4711", false); err != nil { // rolled back: nothing is sent
			log.Print(err)
		}
		if err := request("4712", true); err != nil {
			log.Print(err)
		}
	}()
	if err := shop.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: order 4712
}
