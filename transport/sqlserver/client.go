package sqlserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Session is what [Tx] needs of an endpoint's session.
type Session interface {
	Tx(ctx context.Context) (transport.Tx, error)
}

// ErrNotOurs is returned by [Tx] when the session's transaction is not on PostgreSQL.
var ErrNotOurs = errors.New("postgres: the message was not received through sqlserver.Postgres")

// Tx returns the transaction of the message that is being handled: what a handler writes in
// it happens together with the messages that it sends and the end of the one it handles, or
// not at all. It is opened by the first call and shared by the message's handlers,
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

// Begin implements [tablequeue.Transactor].
func (s *store) Begin(ctx context.Context) (tablequeue.StoreTx, error) {
	conn, err := s.handlers.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: begin: %w", err)
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		conn.Release()
		return nil, fmt.Errorf("postgres: begin: %w", err)
	}
	h := &handlerTx{store: s, conn: conn, user: &userTx{Tx: tx}}
	if !s.opened(h) {
		h.abort()
		return nil, transport.ErrClosed
	}
	return h, nil
}

// opened remembers tx, so that Close can end it.
func (s *store) opened(tx *handlerTx) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		return false
	}
	s.open[tx] = struct{}{}
	return true
}

// handlerTx is a transaction that a delivery is completed in.
type handlerTx struct {
	store *store
	user  *userTx

	mu   sync.Mutex    // guards conn
	conn *pgxpool.Conn // nil when the transaction is over
}

// take is the connection, for whoever ends the transaction; nil when it is over.
func (h *handlerTx) take() *pgxpool.Conn {
	h.mu.Lock()
	conn := h.conn
	h.conn = nil
	h.mu.Unlock()
	h.store.mu.Lock()
	delete(h.store.open, h)
	h.store.mu.Unlock()
	return conn
}

// Complete implements [tablequeue.StoreTx]: the delete, the inserts and the commit are one
// round trip. The delete fails where the lease is lost, and the server then does
// nothing of what follows.
func (h *handlerTx) Complete(ctx context.Context, u *tablequeue.Unit) error {
	conn := h.take()
	if conn == nil {
		return errOver
	}
	defer conn.Release() // which closes it unless the transaction has ended
	var b pgx.Batch
	b.Queue(h.store.table(u.Queue).remove, u.Lease.Seq, u.Lease.ID)
	for _, g := range h.store.groups([]*tablequeue.Unit{{Verb: tablequeue.Send, Rows: u.Rows}}) {
		h.store.queue(&b, g)
	}
	b.Queue("commit")
	results := conn.SendBatch(ctx, &b)
	_, err := results.Exec()
	u.Lost = code(err) == divisionByZero
	if rest := results.Close(); err == nil {
		err = rest
	}
	if err != nil && !conn.Conn().IsClosed() {
		_, _ = conn.Exec(ctx, "rollback")
	}
	if err == nil || u.Lost {
		return nil
	}
	return h.store.failed("commit", err)
}

var errOver = errors.New("postgres: the transaction is over")

// Rollback implements [tablequeue.StoreTx].
func (h *handlerTx) Rollback(ctx context.Context) error {
	conn := h.take()
	if conn == nil {
		return nil
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "rollback"); err != nil {
		return fmt.Errorf("postgres: rollback: %w", err)
	}
	return nil
}

// abort ends the transaction with its connection, which may be in use.
func (h *handlerTx) abort() {
	conn := h.take()
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Conn().Close(ctx)
	conn.Release()
}

// userTx is the transaction as handlers see it.
type userTx struct{ pgx.Tx }

var errEndpoints = errors.New("postgres: the endpoint ends this transaction: return nil or an error from the handler")

func (*userTx) Commit(context.Context) error   { return errEndpoints }
func (*userTx) Rollback(context.Context) error { return errEndpoints }
