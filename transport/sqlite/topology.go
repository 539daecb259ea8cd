package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	var one int
	err := unlessBusy(ctx, func() error {
		return s.read.QueryRowContext(ctx, `select count(*) from holdfast_queues where name = ?`, queue).Scan(&one)
	})
	if err == nil && one == 0 {
		err = transport.ErrNoQueue
	}
	if err != nil {
		return fmt.Errorf("sqlite: look for queue %q: %w", queue, explain(err))
	}
	return nil
}

// Install implements [tablequeue.Topology]. Open has created the tables.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	err := s.writer.do(ctx, durable, func(tx *sql.Tx) error {
		for _, q := range plan.Queues {
			if _, err := tx.Exec(`insert into holdfast_queues (name) values (?) on conflict do nothing`, q.Name); err != nil {
				return fmt.Errorf("queue %q: %w", q.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlite: install: %w", explain(err))
	}
	return nil
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	err := s.writer.do(ctx, durable, func(tx *sql.Tx) error {
		for _, q := range queues {
			for _, statement := range []string{
				`delete from holdfast_subscriptions where queue = ?`,
				`delete from holdfast_messages where queue = ?`,
				`delete from holdfast_queues where name = ?`,
			} {
				if _, err := tx.Exec(statement, q); err != nil {
					return fmt.Errorf("queue %q: %w", q, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlite: remove queues: %w", explain(err))
	}
	return nil
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *store) Subscribe(ctx context.Context, queue string, types []string) error {
	if err := s.Exists(ctx, queue); err != nil {
		return err
	}
	return s.subscription(ctx, queue, types,
		`insert into holdfast_subscriptions (queue, type) values (?, ?) on conflict do nothing`)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return s.subscription(ctx, queue, types,
		`delete from holdfast_subscriptions where queue = ? and type = ?`)
}

func (s *store) subscription(ctx context.Context, queue string, types []string, query string) error {
	err := s.writer.do(ctx, durable, func(tx *sql.Tx) error {
		for _, t := range types {
			if _, err := tx.Exec(query, queue, t); err != nil {
				return fmt.Errorf("type %q: %w", t, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlite: change subscriptions of queue %q: %w", queue, explain(err))
	}
	return nil
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = s.query(ctx, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		all = append(all, sub)
		return err
	}, `select type, queue from holdfast_subscriptions order by type, queue`)
	if err != nil {
		return nil, fmt.Errorf("sqlite: read subscriptions: %w", explain(err))
	}
	return all, nil
}

// inspect reads every row, but not the bodies, which are last in a row.
const inspect = `
	select name,
		count(seq) filter (where visible_at <= ?1),
		count(seq) filter (where visible_at > ?1 and lease_id is not null),
		count(seq) filter (where visible_at > ?1 and lease_id is null),
		min(visible_at)
	from holdfast_queues left join holdfast_messages
		on queue = name and coalesce(expires_at > ?1, true)
	where name = ?2 group by name`

// Inspect implements [tablequeue.Topology].
func (s *store) Inspect(ctx context.Context, queue string) (stats transport.QueueStats, err error) {
	now := micros(time.Now())
	err = s.query(ctx, func(rows *sql.Rows) error {
		var oldest sql.Null[int64]
		err := rows.Scan(&stats.Name, &stats.Ready, &stats.Unsettled, &stats.Delayed, &oldest)
		if stats.Ready > 0 {
			stats.Oldest = time.Duration(now-oldest.V) * time.Microsecond
		}
		return err
	}, inspect, now, queue)
	if err == nil && stats.Name == "" {
		err = transport.ErrNoQueue
	}
	if err != nil {
		return stats, fmt.Errorf("sqlite: inspect queue %q: %w", queue, explain(err))
	}
	return stats, nil
}

// List implements [tablequeue.Topology].
func (s *store) List(ctx context.Context) (names []string, err error) {
	err = s.query(ctx, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, `select name from holdfast_queues order by name`)
	if err != nil {
		return nil, fmt.Errorf("sqlite: list queues: %w", explain(err))
	}
	return names, nil
}

// query calls row for each row of a query.
func (s *store) query(ctx context.Context, row func(*sql.Rows) error, query string, args ...any) error {
	var rows *sql.Rows
	err := unlessBusy(ctx, func() (err error) {
		rows, err = s.read.QueryContext(ctx, query, args...) //nolint:sqlclosecheck // closed below
		return err
	})
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Missing implements [tablequeue.Topology].
func (s *store) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing := make([]bool, len(queues))
	for i, q := range queues {
		err := s.Exists(ctx, q)
		if missing[i] = errors.Is(err, transport.ErrNoQueue); err != nil && !missing[i] {
			return nil, err
		}
	}
	return missing, nil
}
