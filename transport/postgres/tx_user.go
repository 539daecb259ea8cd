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

func (*userTx) Commit(context.Context) error { return errEndpoints }

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
