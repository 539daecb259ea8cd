package postgres

import (
	"context"
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
	lockWatchFirst = 100 * time.Millisecond // before the first look, like dialect.LockWait
	lockWatchNext  = 250 * time.Millisecond // between two looks
	lockWatchMost  = 2 * time.Second        // for a look
)

// A lockWatch cancels the end of a handler's transaction that waits for a table which another session has locked. The
// handler's session has its own lock_timeout, and to change that for one statement and back would cost every handler two more.
type lockWatch struct {
	store *store
	conn  *pgx.Conn
	unit  *tablequeue.Unit // what is written

	mu        sync.Mutex // guards what follows; held during a look
	timer     *time.Timer
	over      bool
	cancelled bool
}

// watchLocks watches what conn does from now on, which is to write u.
func (s *store) watchLocks(conn *pgx.Conn, u *tablequeue.Unit) *lockWatch {
	w := &lockWatch{store: s, conn: conn, unit: u}
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
	// What cannot be found out is looked for again. The statement itself says what is wrong with the server.
	if locked, err := w.store.Locked(ctx, dialect.Queues([]*tablequeue.Unit{w.unit})); err == nil && slices.Contains(locked, true) {
		w.cancelled = true
		if w.conn.PgConn().CancelRequest(ctx) == nil {
			return
		}
	}
	w.timer.Reset(lockWatchNext)
}

// end ends the watch, and returns err, or that a table was locked where that is the cause of err. A connection that was
// sent a cancel request is closed: the request may reach the server late, and would end the next statement.
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
	return fmt.Errorf("postgres: commit: %w", &pgconn.PgError{
		Severity: "ERROR", Code: lockNotAvailable, Message: "the table of a queue that is sent to is locked",
	})
}
