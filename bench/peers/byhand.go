package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

const (
	insertHandled = `INSERT INTO handled (id) VALUES ($1)`
	insertOutbox  = `INSERT INTO outbox (id, queue, headers, body) VALUES ($1, $2, $3, $4)`
)

// bookkeeping queues the statements that make a handler's transaction safe: the id of the message,
// and what it sends.
func bookkeeping(b *pgx.Batch, id string, out message) {
	b.Queue(insertHandled, id)
	b.Queue(insertOutbox, out.id, queueOut, out.headers, out.body)
}

// handledError returns errHandled for the error of an id that is in the table already.
func handledError(err error) error {
	const uniqueViolation = "23505"
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == uniqueViolation && e.TableName == "handled" {
		return errHandled
	}
	return err
}

// commitByHand is a transaction as it is usually written: four requests.
func commitByHand(ctx context.Context, d *database, id string, o order, out message) error {
	return handledError(pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if err := charge(ctx, tx, o); err != nil {
			return err
		}
		var b pgx.Batch
		bookkeeping(&b, id, out)
		return tx.SendBatch(ctx, &b).Close()
	}))
}

// commitPipelined sends begin with the handler's statement, and commit with the bookkeeping: two
// requests.
func commitPipelined(ctx context.Context, d *database, id string, o order, out message) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var business, end pgx.Batch
	business.Queue("begin")
	business.Queue(chargeAccount, o.Account)
	bookkeeping(&end, id, out)
	end.Queue("commit")
	if err = conn.SendBatch(ctx, &business).Close(); err == nil {
		err = conn.SendBatch(ctx, &end).Close()
	}
	if err != nil {
		_, rollback := conn.Exec(ctx, "rollback")
		return errors.Join(handledError(err), rollback)
	}
	return nil
}

type commit func(ctx context.Context, d *database, id string, o order, out message) error

// byHand handles messages with an outbox by hand: the message is sent after the commit, and its row
// is deleted when the broker has accepted it. Rows that a crash leaves are another program's part,
// which takes no time here.
func byHand(commit commit) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		rows := make(chan string, 4*concurrency)
		group, working := errgroup.WithContext(ctx)
		group.Go(func() error { return deleteSent(working, r.database, rows) })
		group.Go(func() error {
			defer close(rows)
			w := worker{
				run: r,
				commit: func(ctx context.Context, id string, o order, out message) error {
					return commit(ctx, r.database, id, o, out)
				},
				sent: func(ctx context.Context, out message) error {
					select {
					case rows <- out.id:
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				},
			}
			return w.work(working)
		})
		if err := group.Wait(); err != nil {
			return err
		}
		return errors.Join(r.expectSent(ctx, r.total), r.expectCharges(ctx, r.total),
			r.expectRows(ctx, "handled ids", r.total, `SELECT count(*) FROM handled`),
			r.expectRows(ctx, "rows in the outbox", 0, `SELECT count(*) FROM outbox`))
	}
}

// deleteSent deletes rows of the outbox until the channel is closed: all that have come during the
// last statement at once.
func deleteSent(ctx context.Context, d *database, rows <-chan string) error {
	for id := range rows {
		ids := []string{id}
		for more := true; more; {
			select {
			case id, more = <-rows:
				if more {
					ids = append(ids, id)
				}
			default:
				more = false
			}
		}
		if _, err := d.pool.Exec(ctx, `DELETE FROM outbox WHERE id = ANY($1)`, ids); err != nil {
			return fmt.Errorf("delete sent rows: %w", err)
		}
	}
	return nil
}

// dualWrite commits and then sends. After a crash between the two the message comes again, and is
// charged twice.
func dualWrite(ctx context.Context, r *run) error {
	w := worker{
		run: r,
		commit: func(ctx context.Context, _ string, o order, _ message) error {
			return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return charge(ctx, tx, o) })
		},
		sent: func(context.Context, message) error { return nil },
	}
	if err := w.work(ctx); err != nil {
		return err
	}
	return errors.Join(r.expectSent(ctx, r.total), r.expectCharges(ctx, r.total))
}
