package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// Sweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (s *store) Sweep(ctx context.Context) error {
	versions := quote(s.Schema, dialect.VersionTable)
	rows, err := s.writes.Query(ctx, `UPDATE `+versions+` SET swept_at = now() WHERE name IN (
	SELECT name FROM `+versions+` WHERE swept_at <= now() - $1::bigint * interval '1 microsecond' FOR UPDATE SKIP LOCKED
) RETURNING name`, dialect.SweepEvery.Microseconds())
	var queues []string
	if err == nil {
		queues, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	for _, q := range queues {
		err = errors.Join(err, s.sweep(ctx, s.table(q)))
	}
	if err != nil {
		return s.failed("remove expired rows", err)
	}
	return nil
}

func (s *store) sweep(ctx context.Context, t *table) error {
	for {
		tag, err := s.execute(ctx, t.sweep)
		if code(err) == undefinedTable {
			return nil // dropped by other means
		}
		if err != nil {
			return fmt.Errorf("queue %q: %w", t.name, err)
		}
		if tag.RowsAffected() < dialect.MaxSwept {
			return nil
		}
	}
}
