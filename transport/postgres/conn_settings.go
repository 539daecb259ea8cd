package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// A proxy that pools transactions may send the next statement to another session. Each batch then sets the engine's
// planner options for itself, and statements are not prepared.

// planner are the settings that keep the planner from reading whole tables, whatever the statistics: a queue that was
// empty when its plan was made may have a million rows a moment later. The statements themselves decide on the index
// and on the order of joins (byKey).
var planner = []string{"enable_seqscan", "enable_bitmapscan", "enable_mergejoin", "jit"}

// planning sets the planner's settings for the rest of the batch.
var planning = func() string {
	text := "SELECT set_config('plan_cache_mode', 'force_generic_plan', true)"
	for _, setting := range planner {
		text += ", set_config('" + setting + "', 'off', true)"
	}
	return text
}()

// The settings of a batch, as the connections of each purpose have them where no proxy is in the way.
var (
	lazily   = planning + ", set_config('synchronous_commit', 'off', true)"
	claiming = lazily + ", set_config('lock_timeout', '" + claimLockWait + "', true)"
	writing  = planning + ", set_config('lock_timeout', '" + dialect.LockWait + "', true)"
)

// batch returns a batch for statements of the engine, which sets the settings where the session does not have them.
func (s *store) batch(settings string) *pgx.Batch {
	var b pgx.Batch
	if s.pooled {
		b.Queue(settings)
	}
	return &b
}

// args returns parameters that the connections can encode.
func (s *store) args(args []any) []any {
	if s.pooled {
		return plain(args)
	}
	return args
}

// execute executes a durable statement, in a batch with its settings where that is needed.
func (s *store) execute(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if !s.pooled {
		return s.writes.Exec(ctx, sql, args...)
	}
	b := s.batch(writing)
	b.Queue(sql, plain(args)...)
	results := s.writes.SendBatch(ctx, b)
	_, err := results.Exec()
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = results.Exec()
	}
	return tag, errors.Join(err, results.Close())
}

// query executes a statement on a connection of pool, in a batch with settings where that is needed.
func (s *store) query(ctx context.Context, pool *pgxpool.Pool, settings, sql string, args ...any) (pgx.Rows, error) {
	if !s.pooled {
		return pool.Query(ctx, sql, args...)
	}
	b := s.batch(settings)
	b.Queue(sql, plain(args)...)
	results := pool.SendBatch(ctx, b)
	if _, err := results.Exec(); err != nil {
		return nil, errors.Join(err, results.Close())
	}
	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return &batchRows{Rows: rows, results: results}, nil
}
