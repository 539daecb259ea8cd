package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	errNotOurs = errors.New("sqlserver: the message was not received through sqlserver.Transport, which is not the outbox of its endpoint either")
	errEnded   = errors.New("the transaction is over: the endpoint ends it, not a handler")
)

// Session is the part of an endpoint's session that [Tx] uses.
type Session interface {
	Tx(ctx context.Context) (transport.HandlerTx, error)
}

// Tx returns the transaction of the message that is being handled. The handler's writes, the
// messages that it sends and the completion of its message are committed together or not at all.
// The transaction begins with the first call. The handlers of a message share it, and use it one at
// a time. It needs the transaction mode SendsAtomicWithReceive, or a [Transport] as the endpoint's
// outbox; then the transaction records in the database that the message was handled.
//
// The endpoint ends it: the message of a handler that commits it or rolls it back fails. When a
// statement fails, SQL Server undoes that statement alone, unless the session sets XACT_ABORT: the
// other writes of a handler that ignores the error are committed.
func Tx(ctx context.Context, s Session) (*sql.Tx, error) {
	t, err := s.Tx(ctx)
	if err != nil {
		return nil, err
	}
	inner, _ := tablequeue.Inner(t)
	own, ok := inner.(*handlerTx)
	if !ok {
		return nil, errNotOurs
	}
	return own.begun(ctx)
}

// transactions are the transactions of a store in which handlers write.
type transactions struct {
	writer   *writer
	handlers *sql.DB

	life context.Context //nolint:containedctx // of the transactions: ends when Close begins
	end  context.CancelFunc
}

// handlerTx is a transaction in which a delivery is completed. It takes a connection at the first
// call of [Tx]. A message without such a call is completed like any other.
type handlerTx struct {
	of   *transactions
	tx   *sql.Tx
	err  error              // of the begin
	cut  context.CancelFunc // rolls it back, also during a statement
	over bool
}

// Begin implements [tablequeue.Transactions].
func (ts *transactions) Begin(context.Context) (tablequeue.StoreTx, error) {
	return &handlerTx{of: ts}, nil
}

func (t *handlerTx) begun(ctx context.Context) (*sql.Tx, error) {
	if t.over {
		return nil, failed(undoneError{errEnded}, "begin")
	}
	if t.tx == nil && t.err == nil {
		t.begin(ctx)
	}
	return t.tx, t.err
}

// begin begins the transaction, which outlasts ctx. It waits for a connection until ctx ends.
func (t *handlerTx) begin(ctx context.Context) {
	var life context.Context
	life, t.cut = context.WithCancel(t.of.life)
	stop := context.AfterFunc(ctx, t.cut)
	tx, err := t.of.handlers.BeginTx(life, nil)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		t.cut()
		t.err = failed(undoneError{err}, "begin")
		return
	}
	t.tx = tx
}

// Complete implements [tablequeue.StoreTx]. When the server has ended the transaction, for example
// after a deadlock, the client refuses the first statement.
func (t *handlerTx) Complete(ctx context.Context, u *tablequeue.Unit) error {
	switch {
	case t.over:
		return failed(undoneError{errEnded}, "commit")
	case t.err != nil:
		return t.err
	case t.tx == nil:
		t.over = true
		return t.of.writer.Flush(ctx, []*tablequeue.Unit{u})
	}
	t.over = true
	defer t.cut()
	defer context.AfterFunc(ctx, t.cut)()
	units := []*tablequeue.Unit{u}
	err := t.of.writer.detector.Once(ctx, units, func() error {
		err := t.of.writer.detector.CheckDelays(units)
		if err == nil {
			err = t.of.writer.write(ctx, waiting{t.tx, lockWait}, units)
		}
		if err == nil && !skipped(u) {
			err = t.of.writer.writeRecords(ctx, waiting{t.tx, lockWait}, u.Records)
		}
		if err != nil || skipped(u) {
			_ = t.tx.Rollback()
		}
		return err
	})
	switch {
	case errors.Is(err, errRival):
		u.Handled, err = true, nil
	case errors.Is(err, sql.ErrTxDone):
		err = undoneError{fmt.Errorf("%w: %w", errEnded, err)}
	case err != nil:
		err = undoneError{err}
	case !skipped(u):
		err = t.tx.Commit()
	}
	return failed(err, "commit")
}

// Rollback implements [tablequeue.StoreTx].
func (t *handlerTx) Rollback(context.Context) error {
	over := t.over
	t.over = true
	if over || t.tx == nil {
		return nil
	}
	defer t.cut()
	if err := t.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return failed(err, "rollback")
	}
	return nil
}
