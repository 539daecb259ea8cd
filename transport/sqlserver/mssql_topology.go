package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [tablequeue.Topology]. One process at a time does it.
func (s *mssqlStore) Install(ctx context.Context, plan transport.Plan) error {
	return s.inTx(ctx, "install", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, mssqlInstallLock, sql.Named("name", "holdfast install "+s.schema)); err != nil {
			return err
		}
		for _, step := range mssqlInstallation(s.schema, plan) {
			if _, err := tx.ExecContext(ctx, step.statement); err != nil {
				return fmt.Errorf("%s: %w", step.of, err)
			}
		}
		return nil
	})
}

type mssqlStep struct{ of, statement string }

// mssqlInstallation creates what is missing.
func mssqlInstallation(schema string, plan transport.Plan) []mssqlStep {
	steps := []mssqlStep{
		{fmt.Sprintf("schema %q", schema), mssqlSchema(schema)},
		{"subscriptions", newMSSQLSubscriptions(schema).create},
	}
	for _, q := range plan.Queues {
		steps = append(steps, mssqlStep{fmt.Sprintf("queue %q", q.Name), newMSSQLTable(schema, q.Name).create})
	}
	return steps
}

// Script is what the installer does for plan, as text for sqlcmd and the like. It connects to nothing.
func (m *MSSQL) Script(plan transport.Plan) (string, error) {
	if err := checkMSSQLName("schema", m.schema()); err != nil {
		return "", err
	}
	for _, q := range plan.Queues {
		if err := checkMSSQLQueue(q.Name); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for _, step := range mssqlInstallation(m.schema(), plan) {
		b.WriteString(step.statement + "\nGO\n")
	}
	return b.String(), nil
}

// Exists implements [tablequeue.Topology].
func (s *mssqlStore) Exists(ctx context.Context, queue string) error {
	var n int
	err := s.db.QueryRowContext(ctx, mssqlTableExists, sql.Named("name", s.table(queue).quoted)).Scan(&n)
	if err == nil && n == 0 {
		err = transport.ErrNoQueue
	}
	if err != nil {
		return mssqlFailed(fmt.Sprintf("queue %q in schema %q", queue, s.schema), err)
	}
	return nil
}

// Inspect implements [tablequeue.Topology].
func (s *mssqlStore) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = s.queues(ctx); err != nil {
			return nil, mssqlFailed("list queues", err)
		}
	}
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, q := range queues {
		st := transport.QueueStats{Name: q}
		var oldest int64
		err := s.db.QueryRowContext(ctx, s.table(q).inspect).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
		if err != nil {
			return nil, mssqlFailed(fmt.Sprintf("inspect queue %q", q), err)
		}
		st.Oldest = time.Duration(oldest) * time.Microsecond
		stats = append(stats, st)
	}
	return stats, nil
}

// queues lists the tables that look like queues.
func (s *mssqlStore) queues(ctx context.Context) (names []string, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, mssqlQueues, sql.Named("schema", s.schema))
	return names, err
}

// Last implements [tablequeue.Browsing].
func (s *mssqlStore) Last(ctx context.Context, queue string) (last int64, err error) {
	if err := s.db.QueryRowContext(ctx, s.table(queue).last).Scan(&last); err != nil {
		return 0, mssqlFailed(fmt.Sprintf("look at queue %q", queue), err)
	}
	return last, nil
}

// Browse implements [tablequeue.Browsing].
func (s *mssqlStore) Browse(ctx context.Context, p tablequeue.Page) (found []tablequeue.Claimed, err error) {
	rows, err := s.db.QueryContext(ctx, s.table(p.Queue).browse, sql.Named("limit", p.Limit),
		sql.Named("after", p.After), sql.Named("last", p.Last))
	if err == nil {
		found, err = readPage(rows)
	}
	if err != nil {
		return nil, mssqlFailed(fmt.Sprintf("look at queue %q", p.Queue), err)
	}
	return found, nil
}

// readPage reads rows until there are enough bytes for a page.
func readPage(rows *sql.Rows) (found []tablequeue.Claimed, err error) {
	defer rows.Close()
	for size := 0; size <= tablequeue.MaxPage && rows.Next(); {
		var row tablequeue.Claimed
		if err := rows.Scan(&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count); err != nil {
			return nil, err
		}
		found = append(found, row)
		size += len(row.Body)
	}
	return found, rows.Err()
}

// Purge implements [tablequeue.Browsing].
func (s *mssqlStore) Purge(ctx context.Context, queue string) (all int64, err error) {
	for n := int64(-1); n != 0 && err == nil; all += max(0, n) {
		var result sql.Result
		if result, err = s.db.ExecContext(ctx, s.table(queue).purge); err == nil {
			n, err = result.RowsAffected()
		}
	}
	if err != nil {
		return 0, mssqlFailed(fmt.Sprintf("purge queue %q", queue), err)
	}
	return all, nil
}

// Take implements [tablequeue.Browsing].
func (s *mssqlStore) Take(ctx context.Context, u *tablequeue.Unit) error {
	return s.inTx(ctx, fmt.Sprintf("take message %d of queue %q", u.Lease.Seq, u.Queue), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.table(u.Queue).take, sql.Named("lease", u.Lease.ID), sql.Named("seq", u.Lease.Seq))
		if err != nil {
			return err
		}
		return s.write(ctx, tx, []*tablequeue.Unit{u})
	})
}

// Subscribe implements [tablequeue.Subscriptions].
func (s *mssqlStore) Subscribe(ctx context.Context, queue string, types []string) error {
	for _, t := range types {
		if n := len(utf16.Encode([]rune(t))); n > maxMSSQLType {
			return fmt.Errorf("mssql: subscribe queue %q: type %q has %d characters: at most %d can be subscribed to", queue, t, n, maxMSSQLType)
		}
	}
	return s.subscription(ctx, fmt.Sprintf("subscribe queue %q", queue), newMSSQLSubscriptions(s.schema).add, queue, types)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (s *mssqlStore) Unsubscribe(ctx context.Context, queue string, types []string) error {
	return s.subscription(ctx, fmt.Sprintf("unsubscribe queue %q", queue), newMSSQLSubscriptions(s.schema).remove, queue, types)
}

func (s *mssqlStore) subscription(ctx context.Context, doing, statement, queue string, types []string) error {
	if _, err := s.db.ExecContext(ctx, statement, sql.Named("queue", queue), list("types", types)); err != nil {
		return noMSSQLSubscriptions(doing, err)
	}
	return nil
}

// Subscriptions implements [tablequeue.Subscriptions].
func (s *mssqlStore) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		all = append(all, sub)
		return err
	}, newMSSQLSubscriptions(s.schema).all)
	if err != nil {
		return nil, noMSSQLSubscriptions("read subscriptions", err)
	}
	return all, nil
}

func noMSSQLSubscriptions(doing string, err error) error {
	if number, ok := mssqlNumber(err); ok && number == invalidObject {
		err = errNotInstalled
	}
	return &mssqlError{doing: doing, cause: err}
}
