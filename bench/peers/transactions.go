package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/internal/uuid"
)

const insertOrder = `INSERT INTO orders (id, account, total) VALUES ($1, $2, $3)`

// transactions runs transactions as a web request does: each inserts a business row, and with sends
// a row for a message. Nothing is sent.
func transactions(sends bool) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		var next atomic.Int64
		group, working := errgroup.WithContext(ctx)
		for range concurrency {
			group.Go(func() error {
				for i := int(next.Add(1)); i <= r.total; i = int(next.Add(1)) {
					if err := r.transaction(working, i, sends); err != nil {
						return fmt.Errorf("insert an order: %w", err)
					}
					r.done()
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		messages := 0
		if sends {
			messages = r.total
		}
		return errors.Join(r.expectRows(ctx, "orders", r.total, `SELECT count(*) FROM orders`),
			r.expectRows(ctx, "rows in the outbox", messages, `SELECT count(*) FROM outbox`))
	}
}

func (r *run) transaction(ctx context.Context, i int, sends bool) error {
	out, err := first(i)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertOrder, uuid.New(time.Now()), i%accounts, 129.95); err != nil || !sends {
			return err
		}
		_, err := tx.Exec(ctx, insertOutbox, out.id, queueOut, out.headers, out.body)
		return err
	})
}
