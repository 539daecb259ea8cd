package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Session is the part of an endpoint's session that [Tx] uses.
type Session interface {
	Tx(ctx context.Context) (transport.HandlerTx, error)
}

// ErrNotOurs is returned by [Tx] when the session's transaction is not on PostgreSQL.
var ErrNotOurs = errors.New("postgres: the message was not received through postgres.Transport, " +
	"and the endpoint has no postgres.Transport as its outbox")

// Tx returns the transaction of the message that is being handled. The handler's writes, the
// messages that it sends and the completion of its message are committed together or not at all.
// The transaction begins with the first statement. The handlers of a message share it, and use it
// one at a time. It needs the transaction mode SendsAtomicWithReceive, or a [Transport] as the
// endpoint's outbox; then the transaction is on the outbox's database, and what the handlers send
// is stored there.
//
// The endpoint commits it and rolls it back: its Commit and Rollback only return an error. A
// handler may have savepoints of its own, by Begin.
func Tx(ctx context.Context, s Session) (pgx.Tx, error) {
	t, err := s.Tx(ctx)
	if err != nil {
		return nil, err
	}
	inner, _ := tablequeue.Inner(t)
	own, ok := inner.(*handlerTx)
	if !ok {
		return nil, ErrNotOurs
	}
	return &own.user, nil
}

// userTx is the transaction that handlers use. It begins with the first statement, and in the same
// round trip when that is Exec, Query, QueryRow or SendBatch.
type userTx struct {
	conn *pgx.Conn
	tx   pgx.Tx      // nil until begun
	err  error       // of the begin
	over atomic.Bool // a goroutine of the handler may still use it then
	lock rowLock
	traces
}

var _ pgx.Tx = (*userTx)(nil)

var (
	errEndpoints = errors.New("postgres: the endpoint ends this transaction: return nil or an error from the handler instead")
	errOver      = fmt.Errorf("postgres: the transaction is over: %w", pgx.ErrTxClosed)
)

func (*userTx) Commit(context.Context) error   { return errEndpoints }
func (*userTx) Rollback(context.Context) error { return errEndpoints }

// begun returns the transaction, and begins it when it has not begun.
func (u *userTx) begun(ctx context.Context) (pgx.Tx, error) {
	switch {
	case u.isOver():
		return nil, errOver
	case u.err == nil && u.tx == nil:
		u.tx, u.err = u.conn.Begin(ctx)
	}
	if u.err == nil && u.lock.wanted {
		u.lock.wanted = false
		u.err = u.lock.take(ctx, u.tx)
	}
	return u.tx, u.err
}

func (u *userTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := u.begun(ctx)
	if err != nil {
		return nil, err
	}
	inner, err := tx.Begin(ctx)
	return within(inner, err, u)
}

func (u *userTx) isOver() bool { return u.over.Load() }

func (u *userTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource,
) (int64, error) {
	tx, err := u.begun(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, from)
}

func (u *userTx) Prepare(
	ctx context.Context, name, sql string,
) (*pgconn.StatementDescription, error) {
	u.note(sql)
	tx, err := u.begun(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

// LargeObjects returns the zero value, which cannot be used, until a statement has begun the
// transaction.
func (u *userTx) LargeObjects() pgx.LargeObjects {
	if u.tx == nil || u.isOver() {
		return pgx.LargeObjects{}
	}
	return u.tx.LargeObjects()
}

// Conn returns the connection, for its type map. A statement that is executed on the connection
// itself is not seen: neither a setting that the statement leaves, nor the end of the transaction.
func (u *userTx) Conn() *pgx.Conn { return u.conn }

var (
	_ pgx.Rows         = failedRows{}
	_ pgx.BatchResults = failedBatch{}
)

// batchRows are the last rows of a batch. Reading them closes the batch, whose commit follows the
// last row: Err returns the error of the commit.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error
}

func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *batchRows) Scan(dest ...any) error { return r.closed(r.Rows.Scan(dest...)) }

func (r *batchRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closed(err)
}

// closed closes the batch when err has closed its rows.
func (r *batchRows) closed(err error) error {
	if err != nil {
		r.Close()
	}
	return err
}

func (r *batchRows) Close() {
	r.Rows.Close()
	err := r.results.Close()
	r.err = cmp.Or(r.err, err)
}

func (r *batchRows) Err() error { return cmp.Or(r.Rows.Err(), r.err) }

// failedRows is the result of a query that was not sent.
type failedRows struct{ err error }

func (failedRows) Close() {}

func (r failedRows) Err() error { return r.err }

func (failedRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

func (failedRows) Next() bool { return false }

func (r failedRows) Scan(...any) error { return r.err }

func (r failedRows) Values() ([]any, error) { return nil, r.err }

func (failedRows) RawValues() [][]byte { return nil }

func (failedRows) Conn() *pgx.Conn { return nil }

func (failedRows) TypeMap() *pgtype.Map { return nil }

// failedBatch is the result of a batch that was not sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }

func (b failedBatch) Query() (pgx.Rows, error) { return failedRows(b), b.err }

func (b failedBatch) QueryRow() pgx.Row { return failedRows(b) }

func (b failedBatch) Close() error { return b.err }

func (failedBatch) Tx() pgx.Tx { return nil }
