package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// An endpoint of NServiceBus keeps its delayed messages in a table with the columns headers, body
// and due, and an id without a meaning. The endpoint assigns the time in UTC as a timestamp without
// a zone to due, a timestamptz: the server reads the value as a time in the session's time zone,
// and compares the value in the same way. So due is wrong by the offset of the zone, and right in
// all sessions with the same zone.

// nowInSession is the current time as NServiceBus writes and compares it.
const nowInSession = `(now() AT TIME ZONE 'UTC')::timestamptz`

// delayedTable returns the quoted name of the table with the delayed messages of NServiceBus beside
// t. ok is false if the server would truncate the name.
func (s *store) delayedTable(t *table) (quoted string, ok bool) {
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
func (s *store) HasDelayed(ctx context.Context, queue string) (bool, error) {
	name, ok := s.delayedTable(s.table(queue))
	if !ok {
		return false, nil
	}
	var columns *int
	err := s.writes.QueryRow(ctx, delayedColumns, pgx.QueryExecModeExec, name).Scan(&columns)
	if err == nil && columns != nil && *columns != 3 {
		err = fmt.Errorf("table %s: %w", name, &tablequeue.UnfitError{
			Reason: "it has not the columns in which NServiceBus keeps delayed messages: headers text, body bytea, due timestamptz",
		})
	}
	return err == nil && columns != nil, s.failed(err, "look for delayed messages of queue %q", queue)
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
func (s *store) MoveDue(ctx context.Context, queue string, limit int) (moved int, next time.Duration, err error) {
	t := s.table(queue)
	from, _ := s.delayedTable(t)
	var micros int64
	rows, err := s.query(ctx, s.writes, moveDue(from, t.quoted), limit)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&moved, &micros}, func() error { return nil })
	}
	if err != nil {
		moved = 0
	}
	return moved, time.Duration(micros) * time.Microsecond, s.failed(err, "move delayed messages into queue %q", queue)
}
