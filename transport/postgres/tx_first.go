package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Exec implements [pgx.Tx]. A statement that sets the isolation level decides whether the message's
// row is locked.
func (u *userTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	u.note(sql)
	snapshot, sets := isolation(sql)
	if (sets || !u.lock.wanted) && u.first(args) {
		results := u.beginWith(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
		tag, err := results.Exec()
		err = cmp.Or(err, results.Close())
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
	u.note(sql)
	if !u.lock.wanted && u.first(args) {
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
	u.note(sql)
	if !u.lock.wanted && u.first(args) {
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
	u.noteAll(b)
	return u.send(ctx, b)
}

// send is SendBatch, also for statements of the engine.
func (u *userTx) send(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !u.lock.wanted && u.first(nil) {
		return firstBatch{u.beginWith(ctx, b.QueuedQueries...)}
	}
	tx, err := u.begun(ctx)
	if err != nil {
		return failedBatch{err}
	}
	return tx.SendBatch(ctx, b)
}

// first reports whether the next statement, with args, can begin the transaction in a batch. There
// pgx accepts no options in args.
func (u *userTx) first(args []any) bool {
	if u.tx != nil || u.err != nil || u.isOver() {
		return false
	}
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
	return cmp.Or(err, r.results.Close())
}

// firstBatch hides the transaction that the batch has begun, which the endpoint ends.
type firstBatch struct{ pgx.BatchResults }

func (firstBatch) Tx() pgx.Tx { return nil }
