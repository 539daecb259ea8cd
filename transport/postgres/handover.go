package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var _ tablequeue.HandingOver = (*store)(nil)

// leased is the condition of a row that a claim holds now.
const leased = `lease_id IS NOT NULL AND visible_at > now()`

// Holders implements [tablequeue.HandingOver].
func (s *store) Holders(ctx context.Context, queue string) ([]tablequeue.Holder, error) {
	rows, err := s.query(ctx, s.writes, `SELECT coalesce(lease_owner, ''), count(*) FROM `+s.table(queue).quoted+` WHERE `+leased+` GROUP BY 1 ORDER BY 1`)
	var all []tablequeue.Holder
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tablequeue.Holder])
	}
	return all, s.failed(err, "look for leases of queue %q", queue)
}

// delayedDDL returns the statements that create a table of delayed messages as NServiceBus does.
func delayedDDL(quoted string) string {
	return `CREATE TABLE ` + quoted + ` (
	id uuid NOT NULL DEFAULT gen_random_uuid(),
	headers text NOT NULL,
	body bytea,
	due timestamptz NOT NULL
);
CREATE INDEX ON ` + quoted + ` (due)`
}

// PrepareHandOver implements [tablequeue.HandingOver].
func (s *store) PrepareHandOver(ctx context.Context, queue string) error {
	t := s.table(queue)
	delayed, possible := s.delayedTable(t)
	if !possible {
		return failure(&tablequeue.UnfitError{Reason: "its name is too long for NServiceBus, whose table of delayed messages adds " +
			tablequeue.DelayedSuffix}, "queue %q", queue)
	}
	found, err := s.HasDelayed(ctx, queue)
	if err != nil {
		return err
	}
	if err := s.makeIDsUnique(ctx, t); err != nil {
		return s.failed(err, "queue %q", queue)
	}
	// NServiceBus cannot read null.
	if _, err := s.writes.Exec(ctx, `UPDATE `+t.quoted+` SET body = '' WHERE body IS NULL`); err != nil || found {
		return s.failed(err, "queue %q", queue)
	}
	err = pgx.BeginFunc(ctx, s.writes, func(tx pgx.Tx) error {
		return run(ctx, tx, s.installLock(), when(regclass(delayed)+` IS NULL`, delayedDDL(delayed)))
	})
	return s.failed(err, "create %s", delayed)
}

var errTextIDs error = &tablequeue.UnfitError{
	Reason: `its ids are text, which NServiceBus cannot read: "holdfast endpoint create --adopt" rewrites the table`,
}

// makeIDsUnique creates the unique index by which NServiceBus finds rows. Rows with the id of
// another get a new one.
func (s *store) makeIDsUnique(ctx context.Context, t *table) error {
	var uuids, unique bool
	err := s.writes.QueryRow(ctx, `SELECT `+idIs(t, "uuid")+`, `+uniqueColumn(t, "id"), pgx.QueryExecModeExec).Scan(&uuids, &unique)
	switch {
	case err != nil || uuids && unique:
		return err
	case !uuids:
		return errTextIDs
	}
	err = s.createUniqueIndex(ctx, t)
	if code(err) != uniqueViolation {
		return err
	}
	_, err = s.writes.Exec(ctx, `UPDATE `+t.quoted+` SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM `+t.quoted+`) AS r WHERE n > 1))`)
	if err != nil {
		return err
	}
	return s.createUniqueIndex(ctx, t)
}

// createUniqueIndex creates the index while other sessions write. An earlier creation that was
// interrupted has left an index that is not valid.
func (s *store) createUniqueIndex(ctx context.Context, t *table) error {
	conn, err := s.writes.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	schema, _ := s.split(t.name)
	index := indexName(t, "_id_key")
	statements := []string{
		`DROP INDEX CONCURRENTLY IF EXISTS ` + quote(schema) + `.` + index,
		`CREATE UNIQUE INDEX CONCURRENTLY ` + index + ` ON ` + t.quoted + ` (id)`,
	}
	if !s.pooled { // it waits for the transactions of others, and may take longer than any statement of an endpoint
		statements = append([]string{`SET lock_timeout TO 0; SET statement_timeout TO 0`}, statements...)
		defer func() {
			_, _ = conn.Exec(context.WithoutCancel(ctx), `RESET lock_timeout; RESET statement_timeout`, pgx.QueryExecModeSimpleProtocol)
		}()
	}
	for _, text := range statements {
		if _, err := conn.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

// delayedOf returns the condition of the rows of from that are delayed messages of queue.
func delayedOf(queue, from string) string {
	if queue == from {
		return `visible_at > now() AND lease_id IS NULL`
	}
	return `NOT (` + leased + `)`
}

// MoveDelayed implements [tablequeue.HandingOver].
func (s *store) MoveDelayed(ctx context.Context, queue, from string, limit int, headers func(string) string) (moved int, err error) {
	err = pgx.BeginFunc(ctx, s.writes, func(tx pgx.Tx) error {
		moved, err = s.moveDelayed(ctx, tx, queue, from, limit, headers)
		return err
	})
	if err != nil {
		moved = 0
	}
	return moved, s.failed(err, "move delayed messages of queue %q", from)
}

func (s *store) moveDelayed(ctx context.Context, tx pgx.Tx, queue, from string, limit int, headers func(string) string) (int, error) {
	source := s.table(from).quoted
	delayed, _ := s.delayedTable(s.table(queue))
	rows, _ := tx.Query(ctx, `SELECT seq, headers FROM `+source+` WHERE `+delayedOf(queue, from)+`
ORDER BY visible_at, seq LIMIT $1 FOR UPDATE`, pgx.QueryExecModeExec, limit) // an error is that of rows too
	var seqs []int64
	var texts []string
	var seq int64
	var text string
	_, err := pgx.ForEachRow(rows, []any{&seq, &text}, func() error {
		seqs, texts = append(seqs, seq), append(texts, headers(text))
		return nil
	})
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	tag, err := tx.Exec(ctx, `WITH gone AS (
	DELETE FROM `+source+` WHERE seq = ANY ($1::bigint[]) RETURNING seq, body, visible_at
) INSERT INTO `+delayed+` (headers, body, due)
SELECT h.headers, coalesce(gone.body, ''), gone.visible_at AT TIME ZONE 'UTC'
FROM gone JOIN unnest($1::bigint[], $2::text[]) AS h(seq, headers) USING (seq) ORDER BY gone.visible_at`, pgx.QueryExecModeExec, seqs, texts)
	if err == nil && tag.RowsAffected() != int64(len(seqs)) {
		err = fmt.Errorf("%d of %d messages were moved", tag.RowsAffected(), len(seqs))
	}
	return len(seqs), err
}

// EndHandOver implements [tablequeue.HandingOver].
func (s *store) EndHandOver(ctx context.Context, queue string, headers func(string) string) (moved int, err error) {
	t := s.table(queue)
	err = pgx.BeginFunc(ctx, s.writes, func(tx pgx.Tx) error {
		if err := run(ctx, tx, `SET LOCAL lock_timeout = '50ms'`, `LOCK TABLE `+t.quoted+` IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		var held bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+t.quoted+` WHERE `+leased+`)`, pgx.QueryExecModeExec).Scan(&held); err != nil {
			return err
		}
		if held {
			return tablequeue.ErrLeased
		}
		for {
			n, err := s.moveDelayed(ctx, tx, queue, queue, maxEndRows, headers)
			moved += n
			if err != nil || n == 0 {
				return errors.Join(err, s.dropColumns(ctx, tx, t))
			}
		}
	})
	if err != nil {
		return 0, s.failed(err, "end the use of queue %q", queue)
	}
	t.foreign.Store(true)
	return moved, nil
}

// maxEndRows bounds the rows that are read at once while the table is locked.
const maxEndRows = 1000

// dropColumns removes the columns of t that NServiceBus's tables do not have, with their indexes,
// and its version.
func (s *store) dropColumns(ctx context.Context, tx pgx.Tx, t *table) error {
	return run(
		ctx, tx,
		`ALTER TABLE `+t.quoted+` DROP COLUMN visible_at, DROP COLUMN delivery_count, DROP COLUMN lease_id, DROP COLUMN lease_owner, DROP COLUMN last_error`,
		when(regclass(s.versions())+` IS NOT NULL`, `DELETE FROM `+s.versions()+` WHERE name = `+literal(t.name)),
	)
}
