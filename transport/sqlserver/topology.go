package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [tablequeue.Topology]. One process at a time installs.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	return s.inTx(ctx, "install", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, installLock, sql.Named("name", "holdfast install "+s.Schema)); err != nil {
			return err
		}
		for _, step := range s.installation(plan) {
			if _, err := tx.ExecContext(ctx, step.statement); err != nil {
				return fmt.Errorf("%s: %w", step.of, err)
			}
		}
		return nil
	})
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	err := s.inTx(ctx, "remove queues", func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, installLock, sql.Named("name", "holdfast install "+s.Schema)); err != nil {
			return err
		}
		for _, q := range queues {
			t, address := s.table(q), q
			if s.Routing != "" {
				address = s.address(q)
			}
			for _, statement := range []string{t.drop, t.forget, s.subscribers().forget} {
				if _, err := tx.ExecContext(ctx, statement, sql.Named("queue", address)); err != nil {
					return fmt.Errorf("queue %q: %w", q, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, q := range queues {
		s.tables.Set(q, newTable(s.Schema, s.place(q), traits{}))
	}
	return nil
}

type step struct{ of, statement string }

// installation returns the statements that create the missing parts of plan.
func (s *store) installation(plan transport.Plan) []step {
	steps := []step{
		{fmt.Sprintf("schema %q", s.Schema), createSchema(s.Schema)},
		{"versions", newVersions(s.Schema).create},
		{"subscriptions", s.subscribers().create},
	}
	for _, q := range plan.Queues {
		t := s.table(q.Name)
		steps = append(steps, step{fmt.Sprintf("queue %q", q.Name), t.create}, step{fmt.Sprintf("queue %q", q.Name), t.note})
	}
	return steps
}

// Script returns the installer's statements for plan as text for sqlcmd. It needs no connection. Executed again, the
// text changes nothing. It does not change foreign tables, such as those of NServiceBus.
func (m *Transport) Script(plan transport.Plan) (string, error) {
	set, err := m.settings("")
	if err != nil {
		return "", err
	}
	s := &store{Settings: set}
	for _, q := range plan.Queues {
		if err := s.Check(q.Name); err != nil {
			return "", err
		}
		if strings.ContainsAny(q.Name, "\r\n") || strings.Contains(q.Name, "$(") {
			return "", fmt.Errorf("sqlserver: queue name %q has text that sqlcmd takes for a command: it cannot be in a script", q.Name)
		}
	}
	var b strings.Builder
	b.WriteString("SET XACT_ABORT, QUOTED_IDENTIFIER, ANSI_NULLS ON\nGO\n") // for the index with a condition
	for _, step := range s.installation(plan) {
		b.WriteString(step.statement + "\nGO\n")
	}
	return b.String(), nil
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	columns, err := s.columns(ctx, queue)
	switch {
	case err != nil:
	case len(columns) == 0:
		err = transport.ErrNoQueue
	case !slices.Contains(columns, "lease_id"):
		err = dialect.ErrForeign
	}
	if err != nil {
		return failed(fmt.Sprintf("queue %q in schema %q", queue, s.Schema), err)
	}
	return nil
}

// Inspect implements [tablequeue.Topology].
func (s *store) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = s.queues(ctx); err != nil {
			return nil, failed("list queues", err)
		}
	}
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, q := range queues {
		var st transport.QueueStats
		err := s.retryDetected(ctx, []string{q}, func() (err error) {
			st, err = s.inspect(ctx, q)
			return err
		})
		if err != nil {
			return nil, failed(fmt.Sprintf("inspect queue %q", q), err)
		}
		stats = append(stats, st)
	}
	return stats, nil
}

func (s *store) inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	st := transport.QueueStats{Name: queue}
	var oldest int64
	err := s.db.QueryRowContext(ctx, s.table(queue).inspect).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
	st.Oldest = time.Duration(oldest) * time.Microsecond
	return st, err
}

// queues returns the tables that have the columns of a queue.
func (s *store) queues(ctx context.Context) (names []string, err error) {
	err = each(ctx, s.db, texts(&names), listQueues, sql.Named("schema", s.Schema))
	return names, err
}

// Last implements [tablequeue.Browsing].
func (s *store) Last(ctx context.Context, queue string) (last int64, err error) {
	if err := s.db.QueryRowContext(ctx, s.table(queue).last).Scan(&last); err != nil {
		return 0, failed(fmt.Sprintf("look at queue %q", queue), err)
	}
	return last, nil
}

// Browse implements [tablequeue.Browsing].
func (s *store) Browse(ctx context.Context, p tablequeue.Page) (found []tablequeue.Claimed, err error) {
	rows, err := s.db.QueryContext(ctx, s.table(p.Queue).browse, sql.Named("limit", p.Limit),
		sql.Named("after", p.After), sql.Named("last", p.Last))
	if err == nil {
		found, err = readPage(rows)
	}
	if err != nil {
		return nil, failed(fmt.Sprintf("look at queue %q", p.Queue), err)
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
func (s *store) Purge(ctx context.Context, queue string) (all int64, err error) {
	all, err = s.untilFew(ctx, s.table(queue).purge)
	if err != nil {
		return 0, failed(fmt.Sprintf("purge queue %q", queue), err)
	}
	return all, nil
}

// Take implements [tablequeue.Browsing].
func (s *store) Take(ctx context.Context, u *tablequeue.Unit) error {
	units := []*tablequeue.Unit{u}
	return s.detecting(ctx, units, func() error {
		return s.inTx(ctx, fmt.Sprintf("take message %d of queue %q", u.Lease.Seq, u.Queue), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, s.table(u.Queue).take, sql.Named("lease", u.Lease.ID), sql.Named("seq", u.Lease.Seq))
			if err != nil {
				return err
			}
			return s.write(ctx, tx, units)
		})
	})
}
