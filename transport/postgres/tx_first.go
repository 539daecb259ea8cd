package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Exec implements [pgx.Tx]. A statement that sets the isolation level decides whether the message's row is locked.
func (u *userTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	snapshot, sets := isolation(sql)
	if u.first() && batchable(args) && (sets || !u.lock.wanted) {
		results := u.beginWith(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		tag, err := results.Exec()
		if closing := results.Close(); err == nil {
			err = closing
		}
		if sets && err == nil {
			u.lock.wanted = snapshot
		}
		return tag, err
	}
	tx, err := u.begun(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

func (u *userTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if u.first() && batchable(args) && !u.lock.wanted {
		results := u.beginWith(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		rows, err := results.Query()
		if err != nil {
			_ = results.Close()
		}
		return &batchRows{Rows: rows, results: results}, err
	}
	tx, err := u.begun(ctx)
	if err != nil {
		return failedRows{err}, err
	}
	return tx.Query(ctx, sql, args...)
}

func (u *userTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if u.first() && batchable(args) && !u.lock.wanted {
		results := u.beginWith(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		return firstRow{results.QueryRow(), results}
	}
	tx, err := u.begun(ctx)
	if err != nil {
		return failedRows{err}
	}
	return tx.QueryRow(ctx, sql, args...)
}

func (u *userTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if u.first() && !u.lock.wanted {
		return firstBatch{u.beginWith(ctx, b.QueuedQueries...)}
	}
	tx, err := u.begun(ctx)
	if err != nil {
		return failedBatch{err}
	}
	return tx.SendBatch(ctx, b)
}

// first reports whether the next statement begins the transaction.
func (u *userTx) first() bool { return u.tx == nil && u.err == nil && !u.over }

// batchable reports whether pgx accepts args in a batch, where it accepts no options.
func batchable(args []any) bool {
	if len(args) == 0 {
		return true
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

// beginWith begins the transaction in one round trip with queries, whose results it returns.
func (u *userTx) beginWith(ctx context.Context, queries ...*pgx.QueuedQuery) pgx.BatchResults {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	b.QueuedQueries = append(b.QueuedQueries, queries...)
	results := u.conn.SendBatch(ctx, &b)
	if _, u.err = results.Exec(); u.err == nil {
		u.tx = results.Tx()
	}
	return results
}

// firstRow is the last row of a batch. Scan closes the batch.
type firstRow struct {
	pgx.Row
	results pgx.BatchResults
}

func (r firstRow) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	if closing := r.results.Close(); err == nil {
		err = closing
	}
	return err
}

// firstBatch hides the transaction that the batch has begun, which the endpoint ends.
type firstBatch struct{ pgx.BatchResults }

func (firstBatch) Tx() pgx.Tx { return nil }
