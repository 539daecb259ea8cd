package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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
	return failed(err, "look for queue %q", queue)
}

// Install implements [tablequeue.Topology]. Open has created the tables.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	queues := make([]string, len(plan.Queues))
	for i, q := range plan.Queues {
		queues[i] = q.Name
	}
	const query = `insert into holdfast_queues (name) values (?) on conflict do nothing`
	err := s.each(ctx, "queue", queues, query)
	if err == nil && slices.ContainsFunc(plan.Queues, func(q transport.Queue) bool { return q.Timers }) {
		err = s.installTimers(ctx)
	}
	if err == nil {
		err = s.each(ctx, "inbox", plan.Inboxes, installInbox, s.clock.now())
	}
	if err == nil && len(plan.Records) > 0 {
		err = s.installRecords(ctx)
	}
	return failed(err, "install")
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	const query = `
		delete from holdfast_subscriptions where queue = ?1;
		delete from holdfast_messages where queue = ?1;
		delete from holdfast_queues where name = ?1;` + removeInbox
	return failed(s.each(ctx, "queue", queues, query), "remove queues")
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *store) Subscribe(ctx context.Context, queue string, types []string) error {
	if err := s.Exists(ctx, queue); err != nil {
		return err
	}
	const query = `insert into holdfast_subscriptions (type, queue) values (?, ?) on conflict do nothing`
	return failed(s.each(ctx, "type", types, query, queue), "change subscriptions of queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *store) Unsubscribe(ctx context.Context, queue string, types []string) error {
	const query = `delete from holdfast_subscriptions where type = ? and queue = ?`
	return failed(s.each(ctx, "type", types, query, queue), "change subscriptions of queue %q", queue)
}

// each executes a statement for each name, which is its first argument, in one transaction.
func (s *store) each(ctx context.Context, what string, names []string, query string, args ...any) error {
	return s.writer.do(ctx, durable, func(tx *sql.Tx) error {
		for _, name := range names {
			if _, err := tx.Exec(query, append([]any{name}, args...)...); err != nil {
				return fmt.Errorf("%s %q: %w", what, name, err)
			}
		}
		return nil
	})
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *store) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = s.query(ctx, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		all = append(all, sub)
		return err
	}, `select type, queue from holdfast_subscriptions order by type, queue`)
	return all, failed(err, "read subscriptions")
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
	now := s.clock.now()
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
	return stats, failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology].
func (s *store) List(ctx context.Context) (names []string, err error) {
	err = s.query(ctx, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, `select name from holdfast_queues order by name`)
	return names, failed(err, "list queues")
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
