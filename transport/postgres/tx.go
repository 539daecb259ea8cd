package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// transactions are the transactions of a store in which handlers write.
type transactions struct {
	*db
	writer    *writer
	records   *recordStore
	inspector *inspector
	txs       slots   // MaxTx of them, where the handlers' pool is the caller's; else nil
	sockets   sockets // of the handlers' pool
	told      told    // the traces that handlers have left in their sessions

	mu   sync.Mutex // guards open
	open map[*handlerTx]struct{}
}

// openPool opens the handlers' pool, unless the caller has given a pool.
func (ts *transactions) openPool(ctx context.Context, cfg *pgxpool.Config, name string) (err error) {
	if ts.callers != nil {
		ts.handlers, ts.txs = ts.callers, make(slots, ts.MaxTx)
		return nil
	}
	own := poolConfig(cfg, name+" handlers", ts.MaxTx)
	own.ConnConfig.DialFunc = ts.sockets.dial(own.ConnConfig.DialFunc)
	if ts.handlers, err = pgxpool.NewWithConfig(ctx, own); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// abort ends all transactions. Begin then fails.
func (ts *transactions) abort() {
	ts.mu.Lock()
	txs := ts.open
	ts.open = nil
	ts.mu.Unlock()
	for tx := range txs {
		if conn := tx.take(); conn != nil { // which the handler may be using
			_ = conn.Hijack().PgConn().Conn().Close()
			ts.freeSlot()
		}
	}
}

// closePool closes the handlers' pool, unless the pool is the caller's.
func (ts *transactions) closePool() {
	defer time.AfterFunc(goodbye, ts.sockets.cut).Stop()
	if ts.callers == nil {
		ts.handlers.Close()
	}
}

// handlerTx is a transaction with its connection, in which a delivery is completed.
type handlerTx struct {
	of     *transactions
	user   userTx
	before *reports // of the session

	mu   sync.Mutex    // guards conn
	conn *pgxpool.Conn // nil when the transaction is over
}

// Begin implements [tablequeue.Transactions]. It waits for a connection. The transaction begins
// with its first statement.
func (ts *transactions) Begin(ctx context.Context) (tablequeue.StoreTx, error) {
	conn, err := ts.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: begin: %w", err)
	}
	ts.standby.look(conn.Conn())
	h := &handlerTx{
		of: ts, conn: conn, user: userTx{conn: conn.Conn()},
		before: reportsOf(conn.Conn(), ts.address.pool),
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.open == nil { // Close has ended the others
		ts.putBack(conn)
		return nil, transport.ErrClosed
	}
	ts.open[h] = struct{}{}
	return h, nil
}

// acquire takes a connection for a handler's transaction. Of a caller's pool it leaves the rest to
// claims and writes: a handler that sends outside its transaction would otherwise wait for
// connections that only handlers have.
func (ts *transactions) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if err := ts.txs.take(ctx); err != nil {
		return nil, err
	}
	if err := ts.slots.take(ctx); err != nil {
		ts.txs.free()
		return nil, err
	}
	conn, err := ts.handlers.Acquire(ctx)
	if err != nil {
		ts.freeSlot()
	}
	return conn, err
}

// putBack returns the connection. If the handler has left something in its session, the connection
// is closed.
func (h *handlerTx) putBack(ctx context.Context, conn *pgxpool.Conn) {
	if !h.of.address.pooled { // a proxy may have switched the session
		h.user.compare(h.before, conn.Conn())
	}
	h.of.clear(ctx, conn.Conn(), h.user.traces)
	h.of.putBack(conn)
}

// putBack returns a connection that acquire took.
func (ts *transactions) putBack(conn *pgxpool.Conn) {
	conn.Release() // which closes it unless the transaction has ended
	ts.freeSlot()
}

// clear closes the connection of a transaction that has left something in its session.
func (ts *transactions) clear(ctx context.Context, conn *pgx.Conn, t traces) {
	if t.left == "" {
		return
	}
	if ts.told.first(t.by + " " + t.left) {
		ts.log.WarnContext(ctx, "a handler's statement leaves something in its session, which the next handler would meet: the connection is closed. "+
			"Use SET LOCAL, set_config(…, true), pg_advisory_xact_lock and ON COMMIT DROP instead", slog.String("statement", t.left), slog.String("function", t.by))
	}
	_ = conn.Close(ctx) // the pool opens another
}

func (ts *transactions) freeSlot() {
	ts.slots.free()
	ts.txs.free()
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
	h.of.mu.Lock()
	delete(h.of.open, h)
	h.of.mu.Unlock()
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
	err := h.of.writer.detector.Once(ctx, units, func() error {
		err := h.of.writer.detector.CheckDelays(units)
		if err == nil {
			err = timerless(h.of.sent(h.of.commit(ctx, conn.Conn(), &h.user, u)), u)
		}
		if err != nil && !conn.Conn().IsClosed() {
			_, _ = conn.Exec(ctx, "rollback")
		}
		return err
	})
	if !errors.Is(err, errWrites) {
		u.Lost, u.Handled = code(err) == divisionByZero, u.Key != nil && h.of.table(u.Inbox).recordedBefore(err)
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

func (ts *transactions) commit(
	ctx context.Context, conn *pgx.Conn, user *userTx, u *tablequeue.Unit,
) error {
	if err := user.takeSessionRole(ctx); err != nil {
		return err
	}
	var b pgx.Batch
	if user.tx == nil {
		b.Queue("begin")
	}
	groups := ts.writer.groups([]*tablequeue.Unit{u})
	ts.writer.lookAtFilters(ctx, groups)
	g := groups[0]
	for _, o := range g.outs {
		o.args = o.values()
	}
	if g.queue == nil {
		ts.queueRecord(&b, g, u)
	} else {
		ts.queueRemoval(&b, g, u)
	}
	ts.records.queueRecords(&b, u.Records)
	b.Queue("commit")
	if len(g.outs) == 0 {
		return sendCommit(ctx, conn, &b)
	}
	watch := ts.watchLocks(conn, u)
	return watch.end(sendCommit(ctx, conn, &b))
}

// queueRemoval adds the statements that complete u.
func (ts *transactions) queueRemoval(b *pgx.Batch, g *group, u *tablequeue.Unit) {
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
	b.Queue(ts.writer.composed(g, true), plain(args)...)
}

// queueRecord adds the statements that record u. Each is a plain insert: one statement for all
// would cost the server more.
func (ts *transactions) queueRecord(b *pgx.Batch, g *group, u *tablequeue.Unit) {
	if g.inbox != nil {
		b.Queue(g.inbox.record, uuid.Text(u.Key.ID), int32(u.Key.Sum))
	}
	for _, o := range g.outs {
		key := shape{
			to: o.to.name, timed: o.timed, foreign: o.foreign, leased: o.leased, counted: o.counted,
			lone: o.lone(), single: true,
		}
		q := b.Queue(ts.writer.statement(key, func() string {
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

// queryCanceled is the SQLSTATE of a statement that was cancelled.
const queryCanceled = "57014"

const (
	lockWatchFirst = 100 * time.Millisecond // before the first query, like dialect.LockWait
	lockWatchNext  = 250 * time.Millisecond // between two queries
	lockWatchMost  = 2 * time.Second        // for a query
)

// A lockWatch cancels the commit of a handler's transaction that waits for a table which another
// session has locked, or for longer than a second for a row. To set lock_timeout for that statement
// alone would cost every handler two further statements.
type lockWatch struct {
	inspector *inspector
	conn      *pgx.Conn
	unit      *tablequeue.Unit // to be written
	began     time.Time

	mu        sync.Mutex // guards the rest; held during a query
	timer     *time.Timer
	over      bool
	cancelled bool
}

// watchLocks begins to watch conn, which writes u.
func (ts *transactions) watchLocks(conn *pgx.Conn, u *tablequeue.Unit) *lockWatch {
	w := &lockWatch{inspector: ts.inspector, conn: conn, unit: u, began: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(lockWatchFirst, w.look)
	return w
}

func (w *lockWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWatchMost)
	defer cancel()
	// A query that fails is repeated. The statement itself reports a fault of the server.
	locked, err := w.inspector.Locked(ctx, dialect.Queues([]*tablequeue.Unit{w.unit}))
	if err == nil && slices.Contains(locked, true) || w.waitsLong(ctx) {
		w.cancelled = true
		if w.conn.PgConn().CancelRequest(ctx) == nil {
			return
		}
	}
	w.timer.Reset(lockWatchNext)
}

// waitsForLock reports whether the session $1 waits for a lock. A session of the same role may see
// it (pg_stat_get_activity).
const waitsForLock = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')`

// waitsLong reports whether a commit that sends messages waits for a lock, more than a second after
// its begin. An insert of a named row waits for other transactions with the name.
func (w *lockWatch) waitsLong(ctx context.Context) (waits bool) {
	if time.Since(w.began) < dialect.LongLockWait || len(w.unit.Rows) == 0 || w.unit.HasNames() {
		return false
	}
	err := w.inspector.writes.QueryRow(ctx, waitsForLock, int64(w.conn.PgConn().PID())).Scan(&waits)
	return err == nil && waits
}

// end ends the watch. It returns err, or a lock error where the watch has caused err by its cancel
// request. A connection with a cancel request is closed: the request may reach the server late, and
// would cancel the next statement.
func (w *lockWatch) end(err error) error {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if !w.cancelled {
		return err
	}
	closeSoon(w.conn)
	if code(err) != queryCanceled {
		return err
	}
	locked := &pgconn.PgError{
		Severity: "ERROR", Code: lockNotAvailable, Message: "a queue that is sent to takes no messages, because of a lock",
	}
	if errors.Is(err, errWrites) { // the messages were inserted: the commit waits, as for a deferred trigger
		locked.Message = "the commit waits for a lock of another transaction"
		return fmt.Errorf("%w: %w", errWrites, locked)
	}
	return locked
}

var _ tablequeue.Locker = (*handlerTx)(nil)

// rowLock locks the row of a message for its transaction. Above READ COMMITTED every change that
// others make after the first statement is a conflict, even a renewal of the lease. So a statement
// before the first locks the row, and the lease is not renewed: claims skip locked rows.
type rowLock struct {
	wanted bool // and not yet taken
	table  *table
	lease  tablequeue.Lease
	hold   func()
}

// Completes implements [tablequeue.Locker].
func (h *handlerTx) Completes(queue string, l tablequeue.Lease, hold func()) {
	h.user.lock = rowLock{wanted: h.of.snapshots, table: h.of.table(queue), lease: l, hold: hold}
}

func (l *rowLock) take(ctx context.Context, tx pgx.Tx) error {
	l.hold()
	var seq int64
	// Planned anew each time: a cached plan may be for an empty queue.
	err := tx.QueryRow(ctx, l.table.lock, pgx.QueryExecModeExec, l.lease.Seq, l.lease.ID).Scan(&seq)
	if errors.Is(err, pgx.ErrNoRows) {
		err = transport.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("postgres: lock message %d of queue %q: %w", l.lease.Seq, l.table.name, err)
	}
	return nil
}

var setsIsolation = regexp.MustCompile(`(?is)^set\s+transaction\b.*\bisolation\s+level\s+(serializable|repeatable\s+read|read\s+committed|read\s+uncommitted)\b`)

// isolation reports whether a statement sets the level of its transaction, and whether that level
// keeps a snapshot.
func isolation(sql string) (snapshot, sets bool) {
	sql = strings.TrimLeft(sql, " \t\r\n")
	if len(sql) < 3 || len(sql) > 1000 || !strings.EqualFold(sql[:3], "set") {
		return false, false // the common case
	}
	level := setsIsolation.FindStringSubmatch(sql)
	if level == nil {
		return false, false
	}
	return keepsSnapshot(strings.Join(strings.Fields(level[1]), " ")), true
}

func keepsSnapshot(level string) bool {
	return slices.Contains([]string{"serializable", "repeatable read"}, strings.ToLower(level))
}
