package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [tablequeue.Topology]. One process at a time installs.
func (s *store) Install(ctx context.Context, plan transport.Plan) error {
	err := pgx.BeginFunc(ctx, s.writes, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, anyLockWait); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, s.installLock()); err != nil {
			return err
		}
		if err := s.installSchema(ctx, tx); err != nil {
			return err
		}
		for _, q := range plan.Queues {
			if err := s.installQueue(ctx, tx, q.Name); err != nil {
				return fmt.Errorf("queue %q: %w", q.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("postgres: install: %w", err)
	}
	return nil
}

// installSchema creates the parts that do not exist: the user may have no right to create those that do.
func (s *store) installSchema(ctx context.Context, tx pgx.Tx) error {
	schema := quote(s.Schema)
	var there bool
	if err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, schema).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
			return fmt.Errorf("schema %q: %w", s.Schema, err)
		}
	}
	for _, t := range s.besides() {
		if there, err := exists(ctx, tx, t.quoted); err != nil {
			return err
		} else if there {
			continue
		}
		if _, err := tx.Exec(ctx, t.ddl); err != nil {
			return err
		}
	}
	return nil
}

// installQueue does not change a foreign table.
func (s *store) installQueue(ctx context.Context, tx pgx.Tx, queue string) error {
	t := s.table(queue)
	found, err := kindOf(ctx, tx, t)
	switch {
	case err != nil || found == kindForeign:
		return err
	case found == kindMissing:
		return run(ctx, tx, append([]string{tableDDL(t), s.versioned(t)}, indexes(t)...)...)
	}
	return s.migrate(ctx, tx, t)
}

// migrate migrates a table to the current version. A table without a version is of the first.
func (s *store) migrate(ctx context.Context, tx pgx.Tx, t *table) error {
	var version int
	err := tx.QueryRow(ctx, `SELECT coalesce(max(version), 1) FROM `+quote(s.Schema, dialect.VersionTable)+` WHERE name = $1`, t.name).Scan(&version)
	switch {
	case err != nil || version == tableVersion:
		return err
	case version > tableVersion || version < 1:
		return newerTable(version)
	}
	texts := []string{lockTimeout}
	for _, migrate := range migrations[version-1:] {
		texts = append(texts, migrate(t)...)
	}
	if err := run(ctx, tx, append(texts, s.versioned(t))...); err != nil {
		return fmt.Errorf("from version %d to %d: %w", version, tableVersion, err)
	}
	return nil
}

// Remove implements [tablequeue.Topology].
func (s *store) Remove(ctx context.Context, queues []string) error {
	err := pgx.BeginFunc(ctx, s.writes, func(tx pgx.Tx) error {
		if err := run(ctx, tx, lockTimeout, `SELECT pg_advisory_xact_lock(hashtextextended(`+literal(s.installLock())+`, 0))`); err != nil {
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
		return fmt.Errorf("postgres: remove queues: %w", err)
	}
	for _, q := range queues {
		s.table(q).foreign.Store(false)
	}
	return nil
}

func (s *store) remove(ctx context.Context, tx pgx.Tx, t *table) error {
	found, err := kindOf(ctx, tx, t)
	switch {
	case err != nil:
		return err
	case found == kindForeign:
		return dialect.ErrForeign
	}
	if err := run(ctx, tx, `DROP TABLE IF EXISTS `+t.quoted); err != nil {
		return err
	}
	column, address := s.subscriberAddress(t.name)
	for _, rows := range []struct{ table, where, name string }{
		{quote(s.Schema, dialect.VersionTable), "name", t.name}, {s.subscribersDDL().quoted, column, address},
	} {
		there, err := exists(ctx, tx, rows.table)
		if err == nil && there {
			_, err = tx.Exec(ctx, `DELETE FROM `+rows.table+` WHERE `+rows.where+` = $1`, pgx.QueryExecModeExec, rows.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
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

func exists(ctx context.Context, db querier, quoted string) (there bool, err error) {
	err = db.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, quoted).Scan(&there)
	return there, err
}

// Inspect implements [tablequeue.Topology].
func (s *store) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = s.queues(ctx); err != nil {
			return nil, fmt.Errorf("postgres: list queues: %w", err)
		}
	}
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, q := range queues {
		st, err := s.inspect(ctx, s.table(q))
		if err != nil {
			return nil, s.failed(fmt.Sprintf("inspect queue %q", q), err)
		}
		stats = append(stats, st)
	}
	return stats, nil
}

func (s *store) inspect(ctx context.Context, t *table) (transport.QueueStats, error) {
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
	if code(err) == undefinedColumn { // a foreign table
		err = s.writes.QueryRow(ctx, `SELECT count(*) FROM `+t.quoted+live).Scan(&st.Ready)
	}
	return st, err
}

// queues returns the tables that have the columns of a queue.
func (s *store) queues(ctx context.Context) ([]string, error) {
	rows, err := s.writes.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND 3 = (SELECT count(*) FROM pg_attribute a
	WHERE a.attrelid = c.oid AND a.attname IN ('visible_at', 'delivery_count', 'lease_id'))
ORDER BY 1`, s.Schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
