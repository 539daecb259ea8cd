// Command web shows a web request that writes a row and sends a message in one transaction of
// PostgreSQL: an order that was refused leaves neither, and one that was accepted both, whenever
// the program is killed.
//
//	POSTGRES_URL=postgres://user:password@localhost:5432/shop go run ./examples/web
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

type OrderPlaced struct{ OrderID string }

// placeOrder serves requests: it places the order of the request's path.
func placeOrder(db *pgxpool.Pool, sales *endpoint.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, order := r.Context(), r.PathValue("order")
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			// The event is sent first: it leaves with the transaction all the same, or not at all.
			if err := sales.Publish(ctx, OrderPlaced{OrderID: order}, endpoint.In(tx)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `insert into example.orders (order_id) values ($1)`, order)
			return err
		})
		if err != nil {
			http.Error(w, "the order was not placed", http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}

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
	if _, err := db.Exec(ctx, `create schema example; create table example.orders (order_id text primary key)`); err != nil {
		return err
	}
	defer db.Exec(context.WithoutCancel(ctx), `drop schema example cascade`) //nolint:errcheck // it leaves nothing behind

	placed := func(_ context.Context, _ *endpoint.Session, m OrderPlaced) error {
		fmt.Fprintf(out, "order %s was placed\n", m.OrderID)
		if m.OrderID == "2" {
			stop()
		}
		return nil
	}
	sales, err := endpoint.New(endpoint.Config{
		Name: "sales", Transport: &postgres.Transport{URL: url, Schema: "example"}, Install: true, Concurrency: 1,
		Messages: []endpoint.Message{endpoint.Event[OrderPlaced]("Shop.OrderPlaced")},
		Handlers: []endpoint.Handler{endpoint.Handle(placed)},
	})
	if err != nil {
		return err
	}
	go func() {
		if sales.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{order}", placeOrder(db, sales))
		for _, order := range []string{"1", "1", "2"} { // the second is refused: there is such an order
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/"+order, http.NoBody))
		}
	}()
	return sales.Run(ctx)
}
