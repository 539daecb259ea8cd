package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// leased is the condition of a row that a claim holds now.
const leased = `lease_id IS NOT NULL AND visible_at > now()`

// handingOver is the part of a store that hands queues over to NServiceBus, and has its delayed messages.
type handingOver struct{ *db }

// Holders implements [tablequeue.HandingOver].
func (h *handingOver) Holders(ctx context.Context, queue string) ([]tablequeue.Holder, error) {
	rows, err := h.query(ctx, h.writes, `SELECT coalesce(lease_owner, ''), count(*) FROM `+h.table(queue).quoted+` WHERE `+leased+` GROUP BY 1 ORDER BY 1`)
	var all []tablequeue.Holder
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tablequeue.Holder])
	}
	return all, h.failed(err, "look for leases of queue %q", queue)
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
func (h *handingOver) PrepareHandOver(ctx context.Context, queue string) error {
	t := h.table(queue)
	delayed, possible := h.delayedTable(t)
	if !possible {
		return failure(&tablequeue.UnfitError{Reason: "its name is too long for NServiceBus, whose table of delayed messages adds " +
			tablequeue.DelayedSuffix}, "queue %q", queue)
	}
	found, err := h.HasDelayed(ctx, queue)
	if err != nil {
		return err
	}
	if err := h.makeIDsUnique(ctx, t); err != nil {
		return h.failed(err, "queue %q", queue)
	}
	// NServiceBus cannot read null.
	if _, err := h.writes.Exec(ctx, `UPDATE `+t.quoted+` SET body = '' WHERE body IS NULL`); err != nil || found {
		return h.failed(err, "queue %q", queue)
	}
	err = pgx.BeginFunc(ctx, h.writes, func(tx pgx.Tx) error {
		return run(ctx, tx, h.installLock(), when(regclass(delayed)+` IS NULL`, delayedDDL(delayed)))
	})
	return h.failed(err, "create %s", delayed)
}

var errTextIDs error = &tablequeue.UnfitError{
	Reason: `its ids are text, which NServiceBus cannot read: "holdfast endpoint create --adopt" rewrites the table`,
}

// makeIDsUnique creates the unique index by which NServiceBus finds rows. Rows with the id of
// another get a new one.
func (h *handingOver) makeIDsUnique(ctx context.Context, t *table) error {
	var uuids, unique bool
	err := h.writes.QueryRow(ctx, `SELECT `+idIs(t, "uuid")+`, `+uniqueColumn(t, "id"), pgx.QueryExecModeExec).Scan(&uuids, &unique)
	switch {
	case err != nil || uuids && unique:
		return err
	case !uuids:
		return errTextIDs
	}
	err = h.createUniqueIndex(ctx, t)
	if code(err) != uniqueViolation {
		return err
	}
	_, err = h.writes.Exec(ctx, `UPDATE `+t.quoted+` SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM `+t.quoted+`) AS r WHERE n > 1))`)
	if err != nil {
		return err
	}
	return h.createUniqueIndex(ctx, t)
}

// createUniqueIndex creates the index while other sessions write. An earlier creation that was
// interrupted has left an index that is not valid.
func (h *handingOver) createUniqueIndex(ctx context.Context, t *table) error {
	conn, err := h.writes.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	schema, _ := h.split(t.name)
	index := indexName(t, "_id_key")
	statements := []string{
		`DROP INDEX CONCURRENTLY IF EXISTS ` + quote(schema) + `.` + index,
		`CREATE UNIQUE INDEX CONCURRENTLY ` + index + ` ON ` + t.quoted + ` (id)`,
	}
	if !h.pooled { // it waits for the transactions of others, and may take longer than any statement of an endpoint
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
func (h *handingOver) MoveDelayed(
	ctx context.Context, queue, from string, limit int, headers func(string) string,
) (moved int, err error) {
	err = pgx.BeginFunc(ctx, h.writes, func(tx pgx.Tx) error {
		moved, err = h.moveDelayed(ctx, tx, queue, from, limit, headers)
		return err
	})
	if err != nil {
		moved = 0
	}
	return moved, h.failed(err, "move delayed messages of queue %q", from)
}

func (h *handingOver) moveDelayed(
	ctx context.Context, tx pgx.Tx, queue, from string, limit int, headers func(string) string,
) (int, error) {
	source := h.table(from).quoted
	delayed, _ := h.delayedTable(h.table(queue))
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
func (h *handingOver) EndHandOver(
	ctx context.Context, queue string, headers func(string) string,
) (moved int, err error) {
	t := h.table(queue)
	err = pgx.BeginFunc(ctx, h.writes, func(tx pgx.Tx) error {
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
			n, err := h.moveDelayed(ctx, tx, queue, queue, maxEndRows, headers)
			moved += n
			if err != nil || n == 0 {
				return errors.Join(err, h.dropColumns(ctx, tx, t))
			}
		}
	})
	if err != nil {
		return 0, h.failed(err, "end the use of queue %q", queue)
	}
	t.foreign.Store(true)
	return moved, nil
}

// maxEndRows bounds the rows that are read at once while the table is locked.
const maxEndRows = 1000

// dropColumns removes the columns of t that NServiceBus's tables do not have, with their indexes,
// and its version.
func (h *handingOver) dropColumns(ctx context.Context, tx pgx.Tx, t *table) error {
	return run(
		ctx, tx,
		`ALTER TABLE `+t.quoted+` DROP COLUMN visible_at, DROP COLUMN delivery_count, DROP COLUMN lease_id, DROP COLUMN lease_owner, DROP COLUMN last_error`,
		when(regclass(h.versions())+` IS NOT NULL`, `DELETE FROM `+h.versions()+` WHERE name = `+literal(t.name)),
	)
}

// delayedColumns returns the number of columns of the table $1 that a table of delayed messages has;
// null if the table does not exist.
const delayedColumns = `SELECT CASE WHEN to_regclass($1) IS NOT NULL THEN (
	SELECT count(*) FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
	WHERE c.oid = to_regclass($1) AND c.relkind = 'r' AND NOT a.attisdropped
	AND (a.attname, a.atttypid) IN (('headers', 'text'::regtype), ('body', 'bytea'::regtype), ('due', 'timestamptz'::regtype))) END`

// HasDelayed implements [tablequeue.DelayedTables].
func (h *handingOver) HasDelayed(ctx context.Context, queue string) (bool, error) {
	name, ok := h.delayedTable(h.table(queue))
	if !ok {
		return false, nil
	}
	var columns *int
	err := h.writes.QueryRow(ctx, delayedColumns, pgx.QueryExecModeExec, name).Scan(&columns)
	if err == nil && columns != nil && *columns != 3 {
		err = fmt.Errorf("table %s: %w", name, &tablequeue.UnfitError{
			Reason: "it has not the columns in which NServiceBus keeps delayed messages: headers text, body bytea, due timestamptz",
		})
	}
	return err == nil && columns != nil, h.failed(err, "look for delayed messages of queue %q", queue)
}

// moveDue returns the statement that moves rows that are due from one table to another.
func moveDue(from, to string) string {
	return `WITH due AS MATERIALIZED (
	SELECT ctid FROM ` + from + ` WHERE due <= ` + nowInSession + ` ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED
), gone AS (
	DELETE FROM ` + from + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM due)) RETURNING headers, body, due
), moved AS (
	INSERT INTO ` + to + ` (id, headers, body)
	SELECT gen_random_uuid(), headers, coalesce(body, '') FROM gone ORDER BY due RETURNING 1
)
SELECT (SELECT count(*) FROM moved), coalesce((extract(epoch FROM (
	SELECT least(due, ` + nowInSession + ` + interval '1 day') FROM ` + from + ` WHERE due > ` + nowInSession + ` ORDER BY due LIMIT 1
) - ` + nowInSession + `) * 1000000)::bigint, 0)`
}

// MoveDue implements [tablequeue.DelayedTables].
func (h *handingOver) MoveDue(
	ctx context.Context, queue string, limit int,
) (moved int, next time.Duration, err error) {
	t := h.table(queue)
	from, _ := h.delayedTable(t)
	var micros int64
	rows, err := h.query(ctx, h.writes, moveDue(from, t.quoted), limit)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&moved, &micros}, func() error { return nil })
	}
	if err != nil {
		moved = 0
	}
	return moved, time.Duration(micros) * time.Microsecond, h.failed(err, "move delayed messages into queue %q", queue)
}
