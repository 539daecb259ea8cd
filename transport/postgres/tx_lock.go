package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

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
