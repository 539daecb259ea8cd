package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// DueForSweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (s *store) DueForSweep(ctx context.Context) ([]string, error) {
	versions := s.versions()
	rows, _ := s.writes.Query(ctx, `UPDATE `+versions+` SET swept_at = now() WHERE name IN (
	SELECT name FROM `+versions+` WHERE swept_at <= now() - $1::bigint * interval '1 microsecond' FOR UPDATE SKIP LOCKED
) RETURNING name`, tablequeue.SweepPause.Microseconds()) // an error is that of rows too
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return queues, s.failed(err, "look for expired rows")
}

// SweepSome implements [tablequeue.Sweeper].
func (s *store) SweepSome(ctx context.Context, queue string) (int64, error) {
	tag, err := s.execute(ctx, s.table(queue).sweep)
	return tag.RowsAffected(), s.failed(err, "remove expired rows of queue %q", queue)
}

// Now implements [tablequeue.Timed].
func (s *store) Now(ctx context.Context) (time.Time, error) {
	var micros int64 // which no setting of a session formats
	err := s.writes.QueryRow(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&micros)
	return time.UnixMicro(micros), s.failed(err, "read the clock")
}
