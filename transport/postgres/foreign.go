package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.HandingOver = (*store)(nil)

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

// An endpoint of NServiceBus keeps its delayed messages in a table with the columns headers, body
// and due, and an id without a meaning. The endpoint assigns the time in UTC as a timestamp without
// a zone to due, a timestamptz: the server reads the value as a time in the session's time zone,
// and compares the value in the same way. So due is wrong by the offset of the zone, and right in
// all sessions with the same zone.

// nowInSession is the current time as NServiceBus writes and compares it.
const nowInSession = `(now() AT TIME ZONE 'UTC')::timestamptz`

// delayedTable returns the quoted name of the table with the delayed messages of NServiceBus beside
// t. ok is false if the server would truncate the name.
func (s *schema) delayedTable(t *table) (quoted string, ok bool) {
	schema, plain := s.split(t.name)
	name := plain + tablequeue.DelayedSuffix
	return quote(schema, name), len(name) <= maxName
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

// A queue table of NServiceBus has the columns id (a uuid), expires (without a zone, in UTC),
// headers, body and seq, and can be sent to. A store detects such a table when the server refuses
// the first row for it, and remembers that.

// SQLSTATEs with which a foreign table refuses rows.
const (
	undefinedColumn  = "42703"
	notNullViolation = "23502" // of id, which has no default there

	insufficientPrivilege = "42501"
)

// Reasons why a table is not received from.
var (
	errOlder error = &tablequeue.UnfitError{
		Reason: `its table is of an earlier version: run the installer, or the script that "holdfast sql script" prints`,
	}
	errAdopting error = &tablequeue.UnfitError{
		Reason: `its table has been taken over from NServiceBus in part: repeat "holdfast endpoint create --adopt", or Install with Adopt`,
	}
)

// foreignColumns are the columns of a foreign table.
var foreignColumns = []string{"id", "expires", "headers", "body", "seq"}

// unfit returns the reason why a queue's table, by its columns, is none that this version receives
// from: [transport.ErrNoQueue], errOlder, [dialect.ErrForeign], or another [*tablequeue.UnfitError]
// for a table that is no queue.
func unfit(ctx context.Context, db querier, t *table) error {
	var columns []string
	err := db.QueryRow(ctx, `SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, t.quoted).Scan(&columns)
	switch {
	case err != nil:
		return err
	case len(columns) == 0:
		return transport.ErrNoQueue
	case !slices.Contains(columns, "lease_id"):
		return unfitForeign(columns)
	case !slices.Contains(columns, "expires"):
		return errOlder
	}
	return nil
}

func unfitForeign(columns []string) error {
	for _, c := range foreignColumns {
		if !slices.Contains(columns, c) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table is no queue: it has no column %q", c)}
		}
	}
	return dialect.ErrForeign
}

// refusedByForeign reports whether the server may have refused rows because of a foreign table.
func refusedByForeign(err error) bool {
	return slices.Contains([]string{undefinedColumn, notNullViolation}, code(err))
}

// Foreign implements [tablequeue.Foreign].
func (s *schema) Foreign(queue string) bool { return s.table(queue).foreign.Load() }

// detectForeign reports whether a queue's table is foreign, which was not known.
func (w *writer) detectForeign(ctx context.Context, queue string, _ error) bool {
	t := w.table(queue)
	foreign := errors.Is(unfit(ctx, w.writes, t), dialect.ErrForeign)
	return foreign && t.foreign.CompareAndSwap(false, true)
}

// Exists implements [tablequeue.Topology].
func (in *inspector) Exists(ctx context.Context, queue string) error {
	t := in.table(queue)
	err := unfit(ctx, in.writes, t)
	if err == nil {
		t.foreign.Store(false) // it may have been taken over
		err = in.usable(ctx, t.name)
	}
	if err == nil {
		err = errors.Join(in.warnOfFilters(ctx, t), in.warnOfRouting(ctx))
	}
	return failure(err, "queue %q in schema %q", queue, in.Schema)
}

// usable refuses a table of a later version, whose columns may have another meaning, and one that
// is being taken over. Where no version can be read the columns decide.
func (in *inspector) usable(ctx context.Context, queue string) error {
	var version int
	err := in.writes.QueryRow(ctx, `SELECT coalesce(max(version), 1) FROM `+in.versions()+` WHERE name = $1`, pgx.QueryExecModeExec, queue).Scan(&version)
	switch {
	case code(err) == undefinedTable || code(err) == insufficientPrivilege:
		return nil
	case err == nil && version == adoptingVersion:
		return errAdopting
	case err == nil && version > tableVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf(
			"its table is of version %d, this program knows those up to %d: update this program", version, tableVersion)}
	}
	return err
}
