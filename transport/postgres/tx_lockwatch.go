package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
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
	store *store
	conn  *pgx.Conn
	unit  *tablequeue.Unit // to be written
	began time.Time

	mu        sync.Mutex // guards the rest; held during a query
	timer     *time.Timer
	over      bool
	cancelled bool
}

// watchLocks begins to watch conn, which writes u.
func (s *store) watchLocks(conn *pgx.Conn, u *tablequeue.Unit) *lockWatch {
	w := &lockWatch{store: s, conn: conn, unit: u, began: time.Now()}
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
	locked, err := w.store.Locked(ctx, dialect.Queues([]*tablequeue.Unit{w.unit}))
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
	err := w.store.writes.QueryRow(ctx, waitsForLock, int64(w.conn.PgConn().PID())).Scan(&waits)
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
