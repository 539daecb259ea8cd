package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Session is what [Tx] needs of an endpoint's session.
type Session interface {
	Tx(ctx context.Context) (transport.HandlerTx, error)
}

// ErrNotOurs is returned by [Tx] when the session's transaction is not on PostgreSQL.
var ErrNotOurs = errors.New("postgres: the message was not received through postgres.Transport")

// Tx returns the transaction of the message that is being handled: what a handler writes in
// it happens together with the messages that it sends and the end of the one it handles, or
// not at all. It begins with the first statement and is shared by the message's handlers,
// which use it one at a time. It needs the transaction mode SendsAtomicWithReceive.
//
// The endpoint commits and rolls it back: its Commit and Rollback only return an
// error. Savepoints (its Begin) are the handler's own.
func Tx(ctx context.Context, s Session) (pgx.Tx, error) {
	t, err := s.Tx(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := tablequeue.Inner(t)
	if !ok {
		return nil, ErrNotOurs
	}
	own, ok := inner.(*handlerTx)
	if !ok {
		return nil, ErrNotOurs
	}
	return own.user, nil
}

// userTx is the transaction as handlers see it. It is begun with the first statement, in its round trip where that is
// Exec, Query, QueryRow or SendBatch.
type userTx struct {
	conn *pgx.Conn
	tx   pgx.Tx // nil until begun
	err  error  // why it could not be begun
	over bool
	lock rowLock
}

var _ pgx.Tx = (*userTx)(nil)

var (
	errEndpoints = errors.New("postgres: the endpoint ends this transaction: return nil or an error from the handler")
	errOver      = errors.New("postgres: the transaction is over")
)

func (*userTx) Commit(context.Context) error   { return errEndpoints }
func (*userTx) Rollback(context.Context) error { return errEndpoints }

// begun is the transaction, begun now if need be.
func (u *userTx) begun(ctx context.Context) (pgx.Tx, error) {
	switch {
	case u.over:
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
	return tx.Begin(ctx)
}

func (u *userTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	tx, err := u.begun(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, from)
}

func (u *userTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := u.begun(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

// LargeObjects are those of a transaction that has begun, that is after another
// statement; before, they are the zero value, which cannot be used.
func (u *userTx) LargeObjects() pgx.LargeObjects {
	if u.tx == nil || u.over {
		return pgx.LargeObjects{}
	}
	return u.tx.LargeObjects()
}

// Conn is the connection, for its type map and the like.
func (u *userTx) Conn() *pgx.Conn { return u.conn }
