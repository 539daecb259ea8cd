package sqlserver

import (
	"context"
	"errors"
	"fmt"
)

// Sweep implements [tablequeue.Sweeper]. Who notes first that a queue is due, sweeps it.
func (s *mssqlStore) Sweep(ctx context.Context) error {
	var queues []string
	err := each(ctx, s.db, texts(&queues), newMSSQLVersions(s.schema).due)
	for _, q := range queues {
		err = errors.Join(err, s.sweep(ctx, q))
	}
	if err != nil {
		return mssqlFailed("remove what has expired", err)
	}
	return nil
}

func (s *mssqlStore) sweep(ctx context.Context, queue string) error {
	_, err := s.untilFew(ctx, s.table(queue).sweep)
	if number, ok := mssqlNumber(err); ok && number == invalidObject {
		return nil // dropped, which nobody has noted
	}
	if err != nil {
		return fmt.Errorf("queue %q: %w", queue, err)
	}
	return nil
}

// untilFew repeats a statement that removes up to maxSwept rows for as long as there are that many.
func (s *mssqlStore) untilFew(ctx context.Context, statement string) (all int64, err error) {
	for n := int64(maxSwept); n >= maxSwept; all += n {
		result, err := s.db.ExecContext(ctx, statement)
		if err == nil {
			n, err = result.RowsAffected()
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}
