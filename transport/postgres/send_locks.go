package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// longLockWait replaces the bound on waiting for locks, [dialect.LockWait], for the rest of a
// transaction. Transactions of handlers have no bound: see [lockWatch].
const longLockWait = `SELECT set_config('lock_timeout', '1s', true)` // dialect.LongLockWait

// FlushWaiting implements [tablequeue.Locks].
func (w *writer) FlushWaiting(ctx context.Context, units []*tablequeue.Unit) error {
	return w.failed(w.flush(ctx, units, func(b *pgx.Batch) { b.Queue(longLockWait) }), "write")
}

// FailingQueue implements [tablequeue.FaultFinder].
func (w *writer) FailingQueue(ctx context.Context, units []*tablequeue.Unit) string {
	rows := &tablequeue.Unit{Verb: tablequeue.Send}
	for _, u := range units {
		for i := range u.Rows {
			if u.Rows[i].Lease == 0 { // the insert of a leased row has parameters of its unit
				rows.Rows = append(rows.Rows, u.Rows[i])
			}
		}
	}
	tx, err := w.writes.Begin(ctx)
	if err != nil {
		return ""
	}
	defer tx.Rollback(ctx) //nolint:errcheck // a connection that cannot roll back is closed
	b := w.batch(w.writes)
	first := b.Len()
	groups := w.groups([]*tablequeue.Unit{rows})
	for _, g := range groups {
		w.queue(b, g)
	}
	results := tx.SendBatch(ctx, b)
	failed, err := firstFailed(b, results)
	_ = results.Close() // has the same error
	if i := failed - first; err != nil && len(groups) == 1 && i >= 0 && i < len(groups[0].outs) {
		return groups[0].outs[i].to.name
	}
	return ""
}

// lockedTables reports which of the tables $1 another session has locked against inserts, or waits
// to lock: in PostgreSQL an insert queues behind a session that waits for such a lock. The
// statement itself waits for no lock.
const lockedTables = `SELECT EXISTS (SELECT FROM pg_locks AS l
	WHERE l.locktype = 'relation' AND l.relation = to_regclass(q.name)
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`

// Locked implements [tablequeue.Locks].
func (in *inspector) Locked(ctx context.Context, queues []string) ([]bool, error) {
	locked, err := in.ofTables(ctx, lockedTables, queues)
	return locked, in.failed(err, "look for locks")
}

const missingTables = `SELECT to_regclass(q.name) IS NULL FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`

// Missing implements [tablequeue.Topology].
func (in *inspector) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing, err := in.ofTables(ctx, missingTables, queues)
	return missing, in.failed(err, "look for tables")
}

// ofTables executes a query about the table of each of queues, without adding to the tables that
// are remembered.
func (d *db) ofTables(ctx context.Context, sql string, queues []string) ([]bool, error) {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = quote(d.split(q))
	}
	rows, _ := d.writes.Query(ctx, sql, names) // an error is that of rows too
	answers, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err == nil && len(answers) != len(queues) {
		err = fmt.Errorf("%d answers for %d tables", len(answers), len(queues))
	}
	return answers, err
}

// hasten returns the statement that makes rows of t visible since the time of the oldest visible
// row.
func hasten(t *table) string {
	return `UPDATE ` + t.quoted + ` SET visible_at = least(now(), (SELECT min(visible_at) FROM ` + t.quoted + `))
WHERE seq = ANY ($1::bigint[]) AND lease_id IS NULL AND visible_at > now()`
}

// Hasten implements [tablequeue.Locks].
func (cl *claimer) Hasten(ctx context.Context, queue string, seqs []int64) error {
	_, err := cl.execute(ctx, hasten(cl.table(queue)), seqs)
	return cl.failed(err, "make rows of queue %q visible", queue)
}
