package sqlserver

import (
	"context"
	"database/sql"
	"time"
)

// DueForSweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (s *store) DueForSweep(ctx context.Context) (queues []string, err error) {
	err = each(ctx, s.db, values(&queues), newVersions(s.Schema).due)
	return queues, failed(err, "look for expired rows")
}

// SweepSome implements [tablequeue.Sweeper].
func (s *store) SweepSome(ctx context.Context, queue string) (int64, error) {
	n, err := changed(ctx, s.db, s.table(queue).sweep)
	return n, failed(err, "remove expired rows of queue %q", queue)
}

// Now implements [tablequeue.Timed].
func (s *store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.db.QueryRowContext(ctx, databaseTime).Scan(&now)
	return now, failed(err, "ask for the time")
}

// changed executes a statement that ends with selectCount.
func changed(ctx context.Context, o on, statement string, args ...any) (n int64, err error) {
	err = each(ctx, o, func(rows *sql.Rows) error { return rows.Scan(&n) }, statement, args...)
	return n, err
}
