package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [tablequeue.Topology]. One process at a time installs.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	if s.adopts {
		if err := s.adopt(ctx, plan); err != nil {
			return failed(err, "adopt tables")
		}
	}
	err := s.installing(ctx, func(tx *sql.Tx) error {
		for _, step := range s.installation(plan) {
			if _, err := tx.ExecContext(ctx, step.statement); err != nil {
				return fmt.Errorf("%s: %w", step.of, err)
			}
		}
		return nil
	})
	return failed(err, "install")
}

// installerName is the name of the lock of an installer.
func installerName(schema string) string { return "holdfast install " + schema }

// installing calls do in a transaction in which no other process installs.
func (s *store) installing(ctx context.Context, do func(tx *sql.Tx) error) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, installLock, sql.Named("name", installerName(s.Schema))); err != nil {
			return err
		}
		return do(tx)
	})
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	err := s.installing(ctx, func(tx *sql.Tx) error {
		for _, q := range queues {
			t, in := s.table(q), s.inbox(q)
			for _, statement := range []string{in.drop, in.unnote, t.drop, t.forget, s.subscribers().forget} {
				if _, err := tx.ExecContext(ctx, statement, sql.Named("queue", s.subscriber(q))); err != nil {
					return fmt.Errorf("queue %q: %w", q, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return failed(err, "remove queues")
	}
	for _, q := range queues {
		s.tables.Set(q, newTable(s.Schema, s.place(q), traits{}))
	}
	return nil
}

type step struct{ of, statement string }

// own is the number of steps of an installation before those of the queues.
const own = 3

// installation returns the statements that create the missing parts of plan.
func (s *store) installation(plan transport.Plan) []step {
	steps := []step{
		{fmt.Sprintf("schema %q", s.Schema), createSchema(s.Schema)},
		{"versions", newVersions(s.Schema).create},
		{"subscriptions", s.subscribers().create},
	}
	for _, q := range plan.Queues {
		t := s.table(q.Name)
		create := t.create
		if q.Shared {
			create = t.createShared
		}
		steps = append(steps, step{fmt.Sprintf("queue %q", q.Name), create}, step{fmt.Sprintf("queue %q", q.Name), t.note})
		if q.Timers {
			of := fmt.Sprintf("timers of queue %q", q.Name)
			steps = append(steps, step{of, t.addNames}, step{of, t.indexNames})
		}
	}
	steps = append(steps, s.installInboxes(plan.Inboxes)...)
	if len(plan.Records) > 0 {
		steps = append(steps, s.installRecords()...)
	}
	return steps
}

// Script returns the installer's statements for plan as text for sqlcmd. It needs no connection.
// Executed again, the text changes nothing. It does not change tables of NServiceBus, unless Adopt
// is set.
func (m *Transport) Script(plan transport.Plan) (string, error) {
	set, err := m.settings("")
	if err != nil {
		return "", err
	}
	s := &store{Settings: set}
	plan.Queues = slices.Clone(plan.Queues)
	for i := range plan.Queues {
		q := &plan.Queues[i]
		if err := s.checkScript(q.Name); err != nil {
			return "", err
		}
		q.Name = s.ShortName(q.Name)
	}
	for _, inbox := range plan.Inboxes {
		if err := s.checkScript(inbox); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	b.WriteString("SET XACT_ABORT, QUOTED_IDENTIFIER, ANSI_NULLS ON\nGO\n") // for the index with a condition
	steps := s.installation(plan)
	if m.Adopt {
		steps = slices.Concat(steps[:own], s.adoptionScript(plan), steps[own:])
	}
	for _, step := range steps {
		b.WriteString(step.statement + "\nGO\n")
	}
	return b.String(), nil
}

// checkScript is Check for a name in a script.
func (s *store) checkScript(name string) error {
	if err := s.Check(name); err != nil {
		return err
	}
	if strings.ContainsAny(name, "\r\n") || strings.Contains(name, "$(") {
		return fmt.Errorf("sqlserver: queue name %q has text that sqlcmd takes for a command: it cannot be in a script", name)
	}
	return nil
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	columns, err := s.columns(ctx, queue)
	found := traits{}.of(columns)
	switch {
	case err != nil:
	case len(columns) == 0:
		err = transport.ErrNoQueue
	case found.foreign:
		err = unfit(columns)
	case s.Foreign(queue): // until it was adopted
		s.tables.Set(queue, newTable(s.Schema, s.place(queue), found))
	}
	return failed(err, "queue %q in schema %q", queue, s.Schema)
}

// Inspect implements [tablequeue.Topology].
func (s *store) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	st := transport.QueueStats{Name: queue}
	var oldest int64
	err := s.repeat(ctx, queue, func() error {
		return s.db.QueryRowContext(ctx, s.table(queue).inspect).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
	})
	st.Oldest = time.Duration(oldest) * time.Microsecond
	return st, failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology]. Queues are the tables that have the columns of one.
func (s *store) List(ctx context.Context) (names []string, err error) {
	err = each(ctx, s.db, values(&names), listQueues, sql.Named("schema", s.Schema))
	for i := range names {
		names[i] = place{schema: s.Schema, table: names[i]}.queue(s.Schema)
	}
	return names, failed(err, "list queues")
}

// Last implements [tablequeue.Browsing].
func (s *store) Last(ctx context.Context, queue string) (last int64, err error) {
	err = s.repeat(ctx, queue, func() error { return s.db.QueryRowContext(ctx, s.table(queue).last).Scan(&last) })
	return last, failed(err, "look at queue %q", queue)
}

// Browse implements [tablequeue.Browsing].
func (s *store) Browse(ctx context.Context, p tablequeue.Page) (found []tablequeue.Claimed, err error) {
	err = s.repeat(ctx, p.Queue, func() (err error) {
		found, err = s.page(ctx, p)
		return err
	})
	return found, failed(err, "look at queue %q", p.Queue)
}

func (s *store) page(ctx context.Context, p tablequeue.Page) (found []tablequeue.Claimed, err error) {
	size := 0
	err = each(ctx, s.db, func(rows *sql.Rows) error {
		var row tablequeue.Claimed
		err := rows.Scan(&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count)
		found = append(found, row)
		if size += len(row.Body); err == nil && size > tablequeue.MaxPage {
			return errPageFull
		}
		return err
	}, s.table(p.Queue).browse, sql.Named("limit", p.Limit), sql.Named("after", p.After), sql.Named("last", p.Last))
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, err
}

var errPageFull = errors.New("enough bytes for a page")

// Purge implements [tablequeue.Browsing].
func (s *store) Purge(ctx context.Context, queue string) (all int64, err error) {
	for n := int64(tablequeue.MaxSwept); n >= tablequeue.MaxSwept && err == nil; all += n {
		err = s.repeat(ctx, queue, func() (err error) {
			n, err = changed(ctx, s.db, s.table(queue).purge)
			return err
		})
	}
	return all, failed(err, "purge queue %q", queue)
}

// Take implements [tablequeue.Browsing].
func (s *store) Take(ctx context.Context, u *tablequeue.Unit) error {
	units := []*tablequeue.Unit{u}
	err := s.detector.Repeat(ctx, units, func() error {
		return s.inTx(ctx, func(tx *sql.Tx) error {
			if s.Foreign(u.Queue) {
				return s.takeForeign(ctx, tx, u)
			}
			_, err := tx.ExecContext(ctx, s.table(u.Queue).take, sql.Named("lease", u.Lease.ID), sql.Named("seq", u.Lease.Seq))
			if err != nil {
				return err
			}
			return s.write(ctx, tx, units)
		})
	})
	return failed(err, "take message %d of queue %q", u.Lease.Seq, u.Queue)
}

// takeForeign deletes the row of u, which its table has no lease for, and inserts the rows that are
// sent with it.
func (s *store) takeForeign(ctx context.Context, tx *sql.Tx, u *tablequeue.Unit) error {
	n, err := changed(ctx, tx, s.table(u.Queue).take, sql.Named("seq", u.Lease.Seq), sql.Named("id", u.RowID))
	if u.Lost = n == 0; err != nil || u.Lost {
		return err
	}
	return s.insert(ctx, tx, []*tablequeue.Unit{u})
}
