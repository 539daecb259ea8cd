package inmemory

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/transport"
)

// OnCommit calls f when the transaction of a handler is committed: together with the completion of
// its message or, where the Transport is the outbox of an endpoint, with the record that the
// message was handled, and with its sends, and not at all if the handler fails. So a handler's
// writes to memory take part in its transaction. s provides the transaction, such as a session of
// the endpoint. f must not use the Transport, and must not panic: the writes of earlier functions
// cannot be undone, and are repeated by the next attempt. OnCommit fails if s does, for a
// transaction of another driver, and for one that is over. It is safe for concurrent use.
func OnCommit(ctx context.Context, s interface {
	Tx(ctx context.Context) (transport.HandlerTx, error)
}, f func(),
) error {
	given, err := s.Tx(ctx)
	if err != nil {
		return err
	}
	found, ok := transport.TxOf[ownTx](given)
	if !ok {
		return errors.New("inmemory: the transaction is one of another transport")
	}
	own := found.self()
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.over {
		return errTxOver
	}
	own.writes = append(own.writes, f)
	return nil
}

var errTxOver = errors.New("inmemory: the transaction is over")

// ownTx is a transaction of this package, also one without some capabilities.
type ownTx interface {
	transport.Tx
	self() *tx
}

// tx collects the handler's writes until it is completed.
type tx struct {
	core   *core
	commit func(ctx context.Context, ops []transport.Operation, writes []func()) error

	mu     sync.Mutex // guards the fields below
	writes []func()
	over   bool

	set stateset.Set // of the goroutine that uses the transaction
}

func (t *tx) self() *tx { return t }

// end ends t, and reports whether it was not over before.
func (t *tx) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := !t.over
	t.over = true
	return ended
}

func (t *tx) isOver() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// Begin fails only if Transport.Fail returns an error, or with ErrLeaseLost.
func (d *delivery) Begin(ctx context.Context) (transport.Tx, error) {
	err := d.settle(ctx, "Begin", func(*item) error { return nil })
	if err != nil {
		return nil, err
	}
	return withoutTx(&tx{core: d.conn.core, commit: d.completeWith}, d.conn.t.Without), nil
}

func (t *tx) Complete(ctx context.Context, ops []transport.Operation) error {
	if !t.end() {
		return errTxOver
	}
	defer t.free()
	if err := t.set.Err(); err != nil {
		return err
	}
	writes := t.writes
	if len(t.set.Changes()) > 0 {
		writes = append(writes, t.store)
	}
	return t.commit(ctx, ops, writes)
}

func (t *tx) Rollback(context.Context) error {
	if t.end() {
		t.free()
	}
	return nil
}
