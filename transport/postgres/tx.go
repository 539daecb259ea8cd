package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
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

// connect opens the handlers' pool, unless the caller has given a pool.
func (ts *transactions) connect(ctx context.Context, cfg *pgxpool.Config, name string) (err error) {
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

// disconnect closes the handlers' pool, unless the pool is the caller's.
func (ts *transactions) disconnect() {
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
	h := &handlerTx{of: ts, conn: conn, user: userTx{conn: conn.Conn()}, before: reportsOf(conn.Conn(), ts.address.pool)}
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
		key := shape{to: o.to.name, timed: o.timed, foreign: o.foreign, leased: o.leased, counted: o.counted, lone: o.lone(), single: true}
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
