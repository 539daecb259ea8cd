package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type ChargeOrder struct{ OrderID string }

type ShipOrder struct{ OrderID string }

var messages = []endpoint.Message{
	endpoint.Command[ChargeOrder]("Shop.ChargeOrder").To("sales"),
	endpoint.Command[ShipOrder]("Shop.ShipOrder").To("shipping"),
}

// shop serves web requests and handles messages until ctx ends or the process is killed. It prints
// its address.
func shop(ctx context.Context, postgresURL, amqpURL string, out io.Writer) error {
	cfg, err := pgxpool.ParseConfig(postgresURL)
	if err != nil {
		return err
	}
	cfg.MaxConns = 16 // of the requests, the handlers and the outbox together
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close()
	sales, err := endpoint.New(endpoint.Config{
		Name: "sales", Install: true, Messages: messages,
		Transport: &rabbitmq.Transport{URL: amqpURL},
		// What a killed process was sending, another one sends when the lease has ended.
		Outbox:   &postgres.Transport{Pool: db, Schema: "example", Lease: 5 * time.Second},
		Handlers: []endpoint.Handler{endpoint.Handle(charge)},
	})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /orders/{order}", placeOrder(db, sales))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer server.Close() //nolint:errcheck // the requests that it ends were not answered
	go func() {
		if sales.WaitReady(ctx) != nil {
			return // Run returns the error
		}
		fmt.Fprintln(out, listener.Addr())
		_ = server.Serve(listener) // until Close
	}()
	return sales.Run(ctx)
}

// placeOrder serves requests. The order and the command to charge it are one transaction of the
// program's own. The broker may be away meanwhile.
func placeOrder(db *pgxpool.Pool, sales *endpoint.Endpoint) http.HandlerFunc {
	errPlaced := errors.New("the order was placed before")
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, order := r.Context(), r.PathValue("order")
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			inserted, err := tx.Exec(ctx, `insert into example.orders (order_id) values ($1) on conflict do nothing`, order)
			if err != nil {
				return err
			}
			if inserted.RowsAffected() == 0 {
				return errPlaced // the client had no answer the first time, and asks again
			}
			return sales.Send(ctx, ChargeOrder{OrderID: order}, endpoint.In(tx))
		})
		if err != nil && !errors.Is(err, errPlaced) {
			http.Error(w, "the order was not placed", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// charge handles a message: its row, the command to ship, and the fact that the message was handled
// are one transaction.
func charge(ctx context.Context, s *endpoint.Session, m ChargeOrder) error {
	tx, err := postgres.Tx(ctx, s)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into example.charges (order_id) values ($1)`, m.OrderID); err != nil {
		return err
	}
	return s.Send(ctx, ShipOrder(m))
}
