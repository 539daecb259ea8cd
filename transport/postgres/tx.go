package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// handlerTx is a transaction with its connection, in which a delivery is completed.
type handlerTx struct {
	store  *store
	user   userTx
	before *reports // of the session

	mu   sync.Mutex    // guards conn
	conn *pgxpool.Conn // nil when the transaction is over
}

// Begin implements [tablequeue.Transactions]. It waits for a connection. The transaction begins
// with its first statement.
func (s *store) Begin(ctx context.Context) (tablequeue.StoreTx, error) {
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: begin: %w", err)
	}
	s.standby.look(conn.Conn())
	h := &handlerTx{store: s, conn: conn, user: userTx{conn: conn.Conn()}, before: reportsOf(conn.Conn(), s.address.pool)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil { // Close has ended the others
		s.putBack(conn)
		return nil, transport.ErrClosed
	}
	s.open[h] = struct{}{}
	return h, nil
}

// acquire takes a connection for a handler's transaction. Of a caller's pool it leaves the rest to
// claims and writes: a handler that sends outside its transaction would otherwise wait for
// connections that only handlers have.
func (s *store) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if err := s.txs.take(ctx); err != nil {
		return nil, err
	}
	if err := s.slots.take(ctx); err != nil {
		s.txs.free()
		return nil, err
	}
	conn, err := s.handlers.Acquire(ctx)
	if err != nil {
		s.freeSlot()
	}
	return conn, err
}

// putBack returns the connection. If the handler has left something in its session, the connection
// is closed.
func (h *handlerTx) putBack(ctx context.Context, conn *pgxpool.Conn) {
	if !h.store.address.pooled { // a proxy may have switched the session
		h.user.compare(h.before, conn.Conn())
	}
	h.store.clear(ctx, conn.Conn(), h.user.traces)
	h.store.putBack(conn)
}

// putBack returns a connection that acquire took.
func (s *store) putBack(conn *pgxpool.Conn) {
	conn.Release() // which closes it unless the transaction has ended
	s.freeSlot()
}

func (s *store) freeSlot() {
	s.slots.free()
	s.txs.free()
}

// slots bounds a number of connections. nil is no bound.
type slots chan struct{}

func (s slots) take(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) free() {
	if s != nil {
		<-s
	}
}

// take returns the connection to the first caller, who ends the transaction, and nil to others.
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

// Complete implements [tablequeue.StoreTx] in one round trip: the delete, or the recording of a
// key, with the inserts, and the commit. The statement fails where the lease is lost or the key is
// not new, and the server then skips the commit.
func (h *handlerTx) Complete(ctx context.Context, u *tablequeue.Unit) error {
	conn := h.take()
	if conn == nil {
		return errOver
	}
	defer h.putBack(ctx, conn)
	h.user.over.Store(true)
	switch {
	case errors.Is(h.user.err, transport.ErrLeaseLost):
		u.Lost = true
		return nil
	case h.user.err != nil:
		return fmt.Errorf("postgres: commit: %w: %w", errNotBegun, h.user.err)
	}
	if conn.Conn().IsClosed() {
		return fmt.Errorf("postgres: commit: %w", errNoConnection)
	}
	if h.user.ended || h.user.tx != nil && conn.Conn().PgConn().TxStatus() == idle {
		return fmt.Errorf("postgres: commit: %w", errEndedByUser)
	}
	units := []*tablequeue.Unit{u}
	err := h.store.detector.Once(ctx, units, func() error {
		err := h.store.detector.CheckDelays(units)
		if err == nil {
			err = timerless(h.store.sent(h.store.commit(ctx, conn.Conn(), &h.user, u)), u)
		}
		if err != nil && !conn.Conn().IsClosed() {
			_, _ = conn.Exec(ctx, "rollback")
		}
		return err
	})
	if !errors.Is(err, errWrites) {
		u.Lost, u.Handled = code(err) == divisionByZero, u.Key != nil && h.store.table(u.Inbox).recordedBefore(err)
	}
	if u.Lost || u.Handled {
		return nil
	}
	return failure(err, "commit")
}

// Broken implements [tablequeue.Breakable].
func (h *handlerTx) Broken() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conn != nil && h.conn.Conn().IsClosed()
}

// Errors of a transaction that the sent messages have not caused.
var (
	errNotBegun = errors.New("the transaction could not be begun")
	errWrites   = tablequeue.ErrWrites

	errEndedByUser = errors.New("the handler has ended its transaction by COMMIT or ROLLBACK, so that its messages were not sent: " +
		"leave the end of the transaction to the endpoint, or use a savepoint")
)

// idle is the status of a session outside of a transaction (PostgreSQL 15, "Message Formats",
// ReadyForQuery).
const idle = 'I'

// A handler's session has the handler's settings. The planner may choose there to read a small
// table as a whole, and cache that plan when the table grows. So the engine turns that off for its
// own statements in the transaction, until the table is too large for such a plan. Only VACUUM FULL
// and TRUNCATE shrink a table, as vacuum_truncate is off.
const (
	// largeTable is the size in bytes from which on the planner prefers an index to reading the
	// table, whatever the statistics.
	largeTable = 1 << 20
	// largeFor is the time for which a table that was large is taken to be large: until
	// [table.largeUntil].
	largeFor = 10 * time.Second
)

func (s *store) commit(ctx context.Context, conn *pgx.Conn, user *userTx, u *tablequeue.Unit) error {
	if err := user.takeSessionRole(ctx); err != nil {
		return err
	}
	var b pgx.Batch
	if user.tx == nil {
		b.Queue("begin")
	}
	groups := s.groups([]*tablequeue.Unit{u})
	s.lookAtFilters(ctx, groups)
	g := groups[0]
	for _, o := range g.outs {
		o.args = o.values()
	}
	if g.queue == nil {
		s.queueRecord(&b, g, u)
	} else {
		s.queueRemoval(&b, g, u)
	}
	s.queueRecords(&b, u.Records)
	b.Queue("commit")
	if len(g.outs) == 0 {
		return sendCommit(ctx, conn, &b)
	}
	watch := s.watchLocks(conn, u)
	return watch.end(sendCommit(ctx, conn, &b))
}

// queueRemoval adds the statements that complete u.
func (s *store) queueRemoval(b *pgx.Batch, g *group, u *tablequeue.Unit) {
	args := []any{u.Lease.Seq, u.Lease.ID}
	if g.inbox != nil {
		args = append(args, uuid.Text(u.Key.ID), int32(u.Key.Sum))
	}
	for _, o := range g.outs {
		args = append(args, o.args...)
	}
	if time.Now().UnixNano() >= g.queue.largeUntil.Load() {
		b.Queue(g.queue.byIndex).QueryRow(func(row pgx.Row) error {
			var large bool
			err := row.Scan(nil, &large)
			if large {
				g.queue.largeUntil.Store(time.Now().Add(largeFor).UnixNano())
			}
			return err
		})
	}
	b.Queue(s.composed(g, true), plain(args)...)
}

// queueRecord adds the statements that record u. Each is a plain insert: one statement for all
// would cost the server more.
func (s *store) queueRecord(b *pgx.Batch, g *group, u *tablequeue.Unit) {
	if g.inbox != nil {
		b.Queue(g.inbox.record, uuid.Text(u.Key.ID), int32(u.Key.Sum))
	}
	for _, o := range g.outs {
		key := shape{to: o.to.name, timed: o.timed, foreign: o.foreign, leased: o.leased, counted: o.counted, lone: o.lone(), single: true}
		q := b.Queue(s.statement(key, func() string {
			if o.counted {
				return o.countedInsert(insertOne(o, 1), o.wanted(1))
			}
			return insertOne(o, 1)
		}), plain(o.args)...)
		if o.leased {
			q.Query(o.insertedLeased)
		}
	}
}

// sendCommit sends a batch that ends with a commit.
func sendCommit(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	results := conn.SendBatch(ctx, b)
	for _, q := range b.QueuedQueries[:b.Len()-1] {
		var err error
		if q.Fn != nil {
			err = q.Fn(results)
		} else {
			_, err = results.Exec()
		}
		if err != nil {
			_ = results.Close()
			return err
		}
	}
	_, err := results.Exec()
	_ = results.Close() // an error after the answer to a commit does not undo it
	if err != nil {
		return fmt.Errorf("%w: %w", errWrites, err)
	}
	return nil
}

// Rollback implements [tablequeue.StoreTx].
func (h *handlerTx) Rollback(ctx context.Context) error {
	conn := h.take()
	if conn == nil {
		return nil
	}
	defer h.putBack(ctx, conn)
	h.user.over.Store(true)
	if h.user.tx == nil || conn.Conn().IsClosed() { // the server rolls back when it loses the connection
		return nil
	}
	_, err := conn.Exec(ctx, "rollback")
	return failure(err, "rollback")
}
