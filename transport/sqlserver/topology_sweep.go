package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// Sweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (s *store) Sweep(ctx context.Context) error {
	var queues []string
	err := each(ctx, s.db, texts(&queues), newVersions(s.Schema).due)
	for _, q := range queues {
		err = errors.Join(err, s.sweep(ctx, q))
	}
	if err != nil {
		return failed("remove expired rows", err)
	}
	return nil
}

func (s *store) sweep(ctx context.Context, queue string) error {
	_, err := s.untilFew(ctx, s.table(queue).sweep)
	if number, ok := numberOf(err); ok && number == invalidObject {
		return nil // dropped by other means
	}
	if err != nil {
		return fmt.Errorf("queue %q: %w", queue, err)
	}
	return nil
}

// untilFew repeats a statement that removes up to [dialect.MaxSwept] rows while it removes that many.
func (s *store) untilFew(ctx context.Context, statement string) (all int64, err error) {
	for n := int64(dialect.MaxSwept); n >= dialect.MaxSwept; all += n {
		if n, err = s.changed(ctx, statement); err != nil {
			return all, err
		}
	}
	return all, nil
}

// changed executes a statement that ends with selectCount.
func (s *store) changed(ctx context.Context, statement string, args ...any) (n int64, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error { return rows.Scan(&n) }, statement, args...)
	return n, err
}
