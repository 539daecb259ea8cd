package sqlserver

import (
	"context"
	"database/sql"
	"errors"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// Texts before the statements that write, which set the wait for a lock. The pool resets it before
// the connection's next use.
const (
	lockWait     = "SET LOCK_TIMEOUT " + dialect.LockWait + ";\n"
	longLockWait = "SET LOCK_TIMEOUT 1000;\n" // dialect.LongLockWait
	anyLockWait  = "SET LOCK_TIMEOUT -1;\n"
	noLockWait   = "SET LOCK_TIMEOUT 0;\n"
)

// missingTables returns the numbers of those of @names that are no tables.
const missingTables = `SELECT r.n FROM OPENJSON(@names) WITH (n int '$[0]', name nvarchar(max) '$[1]') AS r
WHERE object_id(r.name) IS NULL`

// waiting executes statements with a text before each.
type waiting struct {
	on
	text string
}

func (w waiting) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return w.on.QueryContext(ctx, w.text+query, args...)
}

func (w waiting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return w.on.ExecContext(ctx, w.text+query, args...)
}

// waiting sets the statements about locks of other sessions.
func (t *table) waiting(q string) {
	// An update lock on a row needs the lock on the table that an insert needs.
	t.try = noLockWait + `SELECT TOP (1) 1 FROM ` + q + ` WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK);`

	t.hasten = declareNow + `DECLARE @first datetime2(7) = (SELECT min(visible_at) FROM ` + q + lookHint + `);
UPDATE q SET visible_at = CASE WHEN @first < @now THEN @first ELSE @now END
FROM OPENJSON(@seqs) WITH (seq bigint '$') AS r
INNER LOOP JOIN ` + q + ` AS q WITH (ROWLOCK) ON q.` + t.traits.key() + ` = r.seq
WHERE q.lease_id IS NULL AND q.visible_at > @now;`
}

// FlushWaiting implements [tablequeue.Locks].
func (s *store) FlushWaiting(ctx context.Context, units []*tablequeue.Unit) error {
	return s.flush(ctx, units, longLockWait)
}

// Locked implements [tablequeue.Locks]. It tries a lock on each queue: to see the locks of others
// takes rights that an endpoint seldom has.
func (s *store) Locked(ctx context.Context, queues []string) ([]bool, error) {
	locked := make([]bool, len(queues))
	for i, q := range queues {
		err := each(ctx, s.db, func(*sql.Rows) error { return nil }, s.table(q).try)
		if _, answered := errors.AsType[mssql.Error](err); err != nil && !answered {
			return nil, failed(undoneError{err}, "look for locks on queue %q", q)
		}
		locked[i] = numberOf(err) == lockTimeoutExceeded
	}
	return locked, nil
}

// Missing implements [tablequeue.Topology].
func (s *store) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing, names := make([]bool, len(queues)), make([][]any, len(queues))
	for i, q := range queues {
		names[i] = []any{i, s.place(q).quoted()}
	}
	if err := each(ctx, s.db, hits(func(i int) { missing[i] = true }), missingTables, list("names", names)); err != nil {
		return nil, failed(undoneError{err}, "look for tables")
	}
	return missing, nil
}

// Hasten implements [tablequeue.Locks].
func (s *store) Hasten(ctx context.Context, queue string, seqs []int64) error {
	err := s.repeat(ctx, queue, func() error {
		_, err := s.db.ExecContext(ctx, s.table(queue).hasten, list("seqs", seqs))
		return err
	})
	return failed(err, "make rows of queue %q visible", queue)
}
