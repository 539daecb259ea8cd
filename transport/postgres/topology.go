package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// An installer that waits logs that after progressFirst, and then each progressEvery.
const (
	progressFirst = time.Second
	progressEvery = 5 * time.Second
)

// Install implements [tablequeue.Topology]. One process at a time installs.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	var err error
	if s.adopts {
		err = s.adopt(ctx, plan)
	} else {
		err = s.installing(ctx, func(tx pgx.Tx) error { return s.installIn(ctx, tx, plan) })
	}
	return failure(err, "install")
}

func (s *store) installIn(ctx context.Context, tx pgx.Tx, plan transport.Plan) error {
	for _, step := range s.installation(plan) {
		if err := run(ctx, tx, step.text); err != nil {
			return fmt.Errorf("%s: %w", step.of, err)
		}
	}
	return nil
}

// installing calls change in a transaction: again while that fails because another process
// installs.
func (s *store) installing(ctx context.Context, change func(pgx.Tx) error) error {
	pause, wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, s.waiting()
	for {
		err := pgx.BeginFunc(ctx, s.writes, change)
		if code(err) != installerBusy {
			return err
		}
		wait(ctx)
		if ended := pause.Wait(ctx); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// waiting returns a function that logs that an installer waits for another one, when it is time for
// that.
func (s *store) waiting() func(context.Context) {
	said := time.Now().Add(progressFirst - progressEvery)
	return func(ctx context.Context) {
		if time.Since(said) >= progressEvery {
			said = time.Now()
			s.log.WarnContext(ctx, "another installer is at work: waiting until it has ended", slog.String("schema", s.Schema))
		}
	}
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	err := s.installing(ctx, func(tx pgx.Tx) error {
		if err := run(ctx, tx, s.installLock(), lockTimeout); err != nil {
			return err
		}
		for _, q := range queues {
			if err := s.remove(ctx, tx, s.table(q)); err != nil {
				return fmt.Errorf("queue %q: %w", q, err)
			}
		}
		return nil
	})
	if err != nil {
		return failure(err, "remove queues")
	}
	for _, q := range queues {
		s.table(q).foreign.Store(false)
	}
	return nil
}

func (s *store) remove(ctx context.Context, tx pgx.Tx, t *table) error {
	if s.inboxState(ctx, tx, t.name) == nil {
		_, err := tx.Exec(ctx, `DROP TABLE `+t.quoted)
		if err == nil {
			_, err = tx.Exec(ctx, `DELETE FROM `+s.inboxes()+` WHERE name = $1`, t.name)
		}
		return err
	}
	if err := unfit(ctx, tx, t); err != nil && !errors.Is(err, transport.ErrNoQueue) && !errors.Is(err, errOlder) {
		return err
	}
	versions, subscriptions := s.versions(), s.subscribers()
	return run(
		ctx, tx, `DROP TABLE IF EXISTS `+t.quoted,
		when(regclass(versions)+` IS NOT NULL`, `DELETE FROM `+versions+` WHERE name = `+literal(t.name)),
		when(regclass(subscriptions.table)+` IS NOT NULL`, subscriptions.forget+literal(s.subscriber(t.name))),
	)
}

func run(ctx context.Context, tx pgx.Tx, texts ...string) error {
	for _, text := range texts {
		if _, err := tx.Exec(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Inspect implements [tablequeue.Topology].
func (s *store) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	t := s.table(queue)
	st := transport.QueueStats{Name: t.name}
	const live = ` WHERE expires IS NULL OR expires > now() AT TIME ZONE 'UTC'`
	var oldest int64
	err := s.writes.QueryRow(ctx, `SELECT
	count(*) FILTER (WHERE visible_at <= now()),
	count(*) FILTER (WHERE visible_at > now() AND lease_id IS NOT NULL),
	count(*) FILTER (WHERE visible_at > now() AND lease_id IS NULL),
	coalesce(extract(epoch FROM now() - min(visible_at) FILTER (WHERE visible_at <= now())) * 1000000, 0)::bigint
FROM `+t.quoted+live).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
	st.Oldest = time.Duration(oldest) * time.Microsecond
	switch {
	case err == nil:
		t.takesRows.Store(true)
	case code(err) == undefinedColumn: // a foreign table
		err = s.writes.QueryRow(ctx, `SELECT count(*) FROM `+t.quoted+live).Scan(&st.Ready)
	}
	return st, s.failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology]. Queues are the tables that have the columns of one.
func (s *store) List(ctx context.Context) ([]string, error) {
	rows, _ := s.writes.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND 3 = (SELECT count(*) FROM pg_attribute a
	WHERE a.attrelid = c.oid AND a.attname IN ('visible_at', 'delivery_count', 'lease_id'))
ORDER BY 1`, s.Schema) // an error is that of rows too
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range names {
		names[i] = s.shortName(s.Schema, names[i])
	}
	return names, failure(err, "list queues")
}
