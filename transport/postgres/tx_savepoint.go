package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var _ pgx.Tx = savepoint{}

// savepoint is a handler's transaction within its transaction. It is over when that is: the
// connection is then used by others.
type savepoint struct {
	pgx.Tx
	user *userTx
}

// within returns a savepoint for the result of a Begin.
func within(tx pgx.Tx, err error, user *userTx) (pgx.Tx, error) {
	if err != nil {
		return nil, err
	}
	return savepoint{tx, user}, nil
}

func (s savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if s.user.isOver() {
		return nil, errOver
	}
	tx, err := s.Tx.Begin(ctx)
	return within(tx, err, s.user)
}

func (s savepoint) Commit(ctx context.Context) error {
	if s.user.isOver() {
		return errOver
	}
	return s.Tx.Commit(ctx)
}

func (s savepoint) Rollback(ctx context.Context) error {
	if s.user.isOver() {
		return errOver
	}
	return s.Tx.Rollback(ctx)
}

func (s savepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if s.user.isOver() {
		return pgconn.CommandTag{}, errOver
	}
	s.user.note(sql)
	return s.Tx.Exec(ctx, sql, args...)
}

func (s savepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if s.user.isOver() {
		return failedRows{errOver}, errOver
	}
	s.user.note(sql)
	return s.Tx.Query(ctx, sql, args...)
}

func (s savepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if s.user.isOver() {
		return failedRows{errOver}
	}
	s.user.note(sql)
	return s.Tx.QueryRow(ctx, sql, args...)
}

func (s savepoint) Prepare(
	ctx context.Context, name, sql string,
) (*pgconn.StatementDescription, error) {
	if s.user.isOver() {
		return nil, errOver
	}
	s.user.note(sql)
	return s.Tx.Prepare(ctx, name, sql)
}

func (s savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if s.user.isOver() {
		return failedBatch{errOver}
	}
	s.user.noteAll(b)
	return s.Tx.SendBatch(ctx, b)
}

func (s savepoint) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource,
) (int64, error) {
	if s.user.isOver() {
		return 0, errOver
	}
	return s.Tx.CopyFrom(ctx, table, columns, from)
}

// LargeObjects returns the zero value, which cannot be used, when the transaction is over.
func (s savepoint) LargeObjects() pgx.LargeObjects {
	if s.user.isOver() {
		return pgx.LargeObjects{}
	}
	return s.Tx.LargeObjects()
}
