package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// OnCommit registers f, which writes to the file in the transaction that completes the message of
// s: f's writes, the completion and the messages that the handler sends are committed together or
// not at all. s is a session of an endpoint with the transaction mode SendsAtomicWithReceive, or
// with a [Transport] as its outbox; then the transaction records in the file that the message was
// handled. OnCommit itself writes nothing and takes no lock. It may be called several times: the
// functions run in that order.
//
// f runs after the handler has returned nil, and not at all when the lease of the message is lost
// or another delivery of it was handled meanwhile. An error of f undoes the transaction of this
// message only, and fails the message; a panic and the end of f's goroutine count as errors. f must
// be quick, because no other process can write meanwhile. It must use only tx for the file, and
// neither commit nor roll it back. It may run again when the transaction, which other messages
// share, fails. Its ctx ends after 30 s. If f has not returned then, its message fails, tx is rolled
// back, and a statement of f that does not end with ctx is interrupted.
//
// OnCommit fails when s has no such transaction, or one of another transport, and when the
// transaction is over.
func OnCommit(ctx context.Context, s interface {
	Tx(ctx context.Context) (transport.HandlerTx, error)
}, f func(ctx context.Context, tx *sql.Tx) error,
) error {
	given, err := s.Tx(ctx)
	if err != nil {
		return err
	}
	inner, _ := tablequeue.Inner(given)
	own, ok := inner.(*deferredTx)
	if !ok {
		return errors.New("sqlite: on commit: the transaction is one of another transport")
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.over {
		return errTxOver
	}
	own.funcs = append(own.funcs, f)
	return nil
}

// transactions are the transactions of a store in which handlers write.
type transactions struct {
	*db
	records *recordStore
}

// deferredTx is a transaction that is opened when it is committed: an open one would block all
// other writers.
type deferredTx struct {
	of *transactions

	mu     sync.Mutex // guards the rest: OnCommit may be called by several goroutines
	funcs  []func(ctx context.Context, tx *sql.Tx) error
	loaded map[transport.RecordID]int64 // the sequence numbers of records
	over   bool
}

var errTxOver = errors.New("sqlite: the transaction is over")

// Begin implements [tablequeue.Transactions]. It opens nothing.
func (ts *transactions) Begin(context.Context) (tablequeue.StoreTx, error) {
	return &deferredTx{of: ts}, nil
}

// end returns the functions to its first caller.
func (t *deferredTx) end() ([]func(ctx context.Context, tx *sql.Tx) error, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, errTxOver
	}
	t.over = true
	return t.funcs, nil
}

// Complete implements [tablequeue.StoreTx].
func (t *deferredTx) Complete(ctx context.Context, u *tablequeue.Unit) error {
	funcs, err := t.end()
	if err != nil {
		return err
	}
	w := t.of.writer
	kind := foreign
	if len(funcs) == 0 && len(u.Records) == 0 {
		kind = durable
	}
	err = w.do(ctx, kind, func(tx *sql.Tx) error {
		now := t.of.clock.now()
		return w.write(u, now, func() error {
			if err := w.writeRecords(u.Records, t.loaded, now); err != nil {
				return err
			}
			return w.runAll(context.WithoutCancel(ctx), tx, funcs)
		})
	})
	if errors.Is(err, errOnCommit) {
		return fmt.Errorf("sqlite: %w", err)
	}
	return failed(err, "complete")
}

// Rollback implements [tablequeue.StoreTx].
func (t *deferredTx) Rollback(context.Context) error {
	_, _ = t.end()
	return nil
}

// commitTimeout bounds a function of OnCommit, for which all other writers wait.
const commitTimeout = 30 * time.Second

// errHangs is the error of a function that was left: it may use the transaction at any time.
var errHangs = errors.New("the function has not returned in time")

// call calls f on a goroutine of its own: f may end it, as FailNow does in a test, and must not end
// the writer's.
func call(ctx context.Context, tx *sql.Tx, f func(ctx context.Context, tx *sql.Tx) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commitTimeout, errHangs)
	defer cancel()
	return callback.Run(ctx, func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return f(ctx, tx)
	})
}
