package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.Breakable = (*handlerTx)(nil)

// notNew is the SQLSTATE with which a statement fails whose key is in the inbox already: that of the square root of a
// negative number.
const notNew = "2201F"

// inboxVersion is the version of the inboxes that this package creates.
const inboxVersion = 1

// unlessNew is the expression that ends the transaction where the key is not new. The argument is volatile, as the planner
// would evaluate a constant one even where it is not needed.
const unlessNew = "coalesce((SELECT 1 FROM new), sqrt(-1 - random())::int)"

// recordKey returns the statement that records the key $first with its checksum. It waits for another transaction that
// records it.
func recordKey(inbox *table, first int) string {
	return fmt.Sprintf("INSERT INTO %s (key, sum) VALUES ($%d::uuid, $%d::int) ON CONFLICT DO NOTHING RETURNING 1",
		inbox.quoted, first, first+1)
}

// recordOne returns the statement that records the key $1 with the checksum $2 and inserts the rows that were sent with
// it. Where the key is not new it ends the transaction. Without an inbox it inserts the rows alone.
func recordOne(inbox *table, outs []*out) string {
	var b strings.Builder
	if inbox == nil {
		b.WriteString("WITH new AS (SELECT 1)")
		insertsOfOne(&b, outs, 1)
		b.WriteString(" SELECT 1")
		return b.String()
	}
	b.WriteString("WITH new AS (" + recordKey(inbox, 1) + ")")
	insertsOfOne(&b, outs, 3)
	b.WriteString(" SELECT " + unlessNew)
	return b.String()
}

// recorded is the part of a statement that inserts the keys of r and returns the new ones. Concurrent statements insert
// them in one order, so that none waits for another that waits for it.
func recorded(inbox *table, from string) string {
	return `new AS (INSERT INTO ` + inbox.quoted + ` (key, sum) SELECT key, sum FROM ` + from +
		` ORDER BY key ON CONFLICT DO NOTHING RETURNING key)`
}

// record returns the statement that records the keys $1 with the checksums $2, and inserts the rows that were sent with
// the new ones.
func record(inbox *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH r AS MATERIALIZED (
	SELECT key::uuid AS key, sum::int AS sum, n FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS r(key, sum, n)
), ` + recorded(inbox, "r") + `, gone AS (SELECT r.n FROM r JOIN new USING (key))`)
	inserts(&b, outs, 3)
	return b.String() + " SELECT n FROM gone"
}

// completionRecorded is [completion] with keys in $3 and their checksums in $4. It returns the number of each row whose
// lease is held, and whether its key is new: only then it deletes the row, and inserts those that were sent with it.
func completionRecorded(q, inbox *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH held AS MATERIALIZED (
	SELECT q.ctid AS at, r.n, r.key::uuid AS key, r.sum::int AS sum FROM ` + q.quoted + ` AS q,
		unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY AS r(seq, lease_id, key, sum, n)
	WHERE ` + named + ` FOR UPDATE OF q
), ` + recorded(inbox, "held") + `, gone AS (SELECT held.n FROM held JOIN new USING (key)), deleted AS (
	DELETE FROM ` + q.quoted + ` WHERE ctid = ANY (ARRAY(SELECT held.at FROM held JOIN new USING (key)))
)`)
	inserts(&b, outs, 5)
	b.WriteString(" SELECT n, n IN (SELECT n FROM gone) FROM held")
	return b.String()
}

// recorded marks the units whose key was not new.
func (g *group) recorded(rows pgx.Rows) error {
	for _, u := range g.units {
		u.Handled = true
	}
	return eachNumber(rows, func(n int64) { g.units[n-1].Handled = false })
}

// settledAndRecorded marks the units whose row the statement did not hit, or whose key was not new.
func (g *group) settledAndRecorded(rows pgx.Rows) error {
	for _, u := range g.units {
		u.Lost, u.Handled = true, false
	}
	var n int64
	var fresh bool
	_, err := pgx.ForEachRow(rows, []any{&n, &fresh}, func() error {
		g.units[n-1].Lost, g.units[n-1].Handled = false, !fresh
		return nil
	})
	return err
}

// keysOf returns the keys of units as texts, and their checksums.
func keysOf(units []*tablequeue.Unit) (keys array[text], sums array[number]) {
	keys, sums = make(array[text], len(units)), make(array[number], len(units))
	for i, u := range units {
		keys[i], sums[i] = text(uuid.Text(u.Key.ID)), number(int32(u.Key.Sum)) //nolint:gosec // its bits
	}
	return keys, sums
}

// FindHandled implements [tablequeue.Inboxes]. The keys are joined from outside by a LATERAL search, so that each is one
// search of the index whatever the statistics.
func (s *store) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	texts := make(array[text], len(keys))
	for i := range keys {
		texts[i] = text(uuid.Text(keys[i].ID))
	}
	states := make([]transport.HandledState, len(keys))
	rows, _ := s.leases.Query(ctx, s.table(inbox).find, s.args([]any{texts})...) // an error is that of rows too
	var n int64
	var sum int32
	_, err := pgx.ForEachRow(rows, []any{&n, &sum}, func() error {
		states[n-1] = transport.HandledOther
		if uint32(sum) == keys[n-1].Sum { //nolint:gosec // its bits
			states[n-1] = transport.Handled
		}
		return nil
	})
	return states, s.failed(err, "look for handled messages in inbox %q", inbox)
}

// inboxes returns the table with the versions of inboxes. It is not that of queues: programs of an earlier version remove
// expired rows from every name in that table.
func (s *store) inboxes() string { return quote(s.Schema, dialect.InboxTable) }

// installInbox returns the statements that create an inbox and its version. Its keys grow with time, so that inserts
// change few pages.
func (s *store) installInbox(inbox string) []step {
	t, of := s.table(inbox), fmt.Sprintf("inbox %q", inbox)
	version := `(SELECT version FROM ` + s.inboxes() + ` WHERE name = ` + literal(inbox) + `)`
	return []step{
		{"versions of inboxes", when(regclass(s.inboxes())+` IS NULL`, `CREATE TABLE `+s.inboxes()+` (
	name text PRIMARY KEY,
	version integer NOT NULL,
	forgotten_at timestamptz NOT NULL DEFAULT now()
)`)},
		{of, do(`IF ` + regclass(t.quoted) + ` IS NULL THEN
CREATE TABLE ` + t.quoted + ` (
	key uuid PRIMARY KEY,
	at timestamptz NOT NULL DEFAULT now(),
	sum integer NOT NULL
) WITH (` + inboxStorage + `);
CREATE INDEX IF NOT EXISTS ` + indexName(t, "_at_idx") + ` ON ` + t.quoted + ` (at);
INSERT INTO ` + s.inboxes() + ` (name, version) VALUES (` + literal(inbox) + `, ` + strconv.Itoa(inboxVersion) + `)
	ON CONFLICT (name) DO UPDATE SET version = excluded.version;
ELSIF coalesce(` + version + `, 0) > ` + strconv.Itoa(inboxVersion) + ` THEN
	RAISE EXCEPTION 'the inbox is of version %, this program knows version ` + strconv.Itoa(inboxVersion) + `: update this program', ` + version + `;
END IF`)},
	}
}

// inboxStorage are the storage parameters of an inbox, to which rows are added and from which the oldest are deleted.
const inboxStorage = `autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0`

// inboxStatements sets the statements of an inbox.
func (t *table) inboxStatements() {
	t.find = `SELECT r.n, i.sum FROM unnest($1::text[]) WITH ORDINALITY AS r(key, n),
	LATERAL (SELECT sum FROM ` + t.quoted + ` WHERE key = r.key::uuid OFFSET 0) AS i`
	t.forget = `DELETE FROM ` + t.quoted + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + t.quoted + `
	WHERE at < now() - $1::bigint * interval '1 microsecond' ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))`
	t.forgetKeys = `DELETE FROM ` + t.quoted + ` WHERE key = ANY ($1::text[]::uuid[])`
}

// DueForForgetting implements [tablequeue.Inboxes]. The first process that marks a due inbox removes its old keys.
func (s *store) DueForForgetting(ctx context.Context, inbox string, pause time.Duration) (bool, error) {
	tag, err := s.execute(ctx, `UPDATE `+s.inboxes()+` SET forgotten_at = now()
WHERE name = $1 AND forgotten_at <= now() - $2::bigint * interval '1 microsecond'`, inbox, pause.Microseconds())
	return tag.RowsAffected() > 0, s.failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes].
func (s *store) Forget(ctx context.Context, inbox string, age time.Duration, limit int) (int64, error) {
	tag, err := s.execute(ctx, s.table(inbox).forget, age.Microseconds(), limit)
	return tag.RowsAffected(), s.failed(err, "remove old ids from inbox %q", inbox)
}

// ForgetKeys implements [tablequeue.Inboxes].
func (s *store) ForgetKeys(ctx context.Context, inbox string, keys []transport.HandledKey) (int64, error) {
	texts := make([]string, len(keys))
	for i := range keys {
		texts[i] = uuid.Text(keys[i].ID)
	}
	tag, err := s.execute(ctx, s.table(inbox).forgetKeys, texts)
	return tag.RowsAffected(), s.failed(err, "remove ids from inbox %q", inbox)
}

// InspectInbox implements [tablequeue.Inboxes]. The number of rows is the planner's estimate, unless the table is small.
func (s *store) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	t := s.table(inbox)
	stats := transport.InboxStats{Name: inbox}
	var oldest int64
	err := s.writes.QueryRow(ctx, `SELECT
	CASE WHEN pg_relation_size(c.oid) < 16777216 THEN (SELECT count(*) FROM `+t.quoted+`) ELSE greatest(c.reltuples, 0)::bigint END,
	pg_total_relation_size(c.oid),
	(SELECT count(*) FROM `+t.quoted+` WHERE at > now() - interval '1 hour'),
	coalesce((extract(epoch FROM now() - (SELECT at FROM `+t.quoted+` ORDER BY at LIMIT 1)) * 1000000)::bigint, 0)
FROM pg_class AS c WHERE c.oid = `+literal(t.quoted)+`::regclass`).Scan(&stats.Rows, &stats.Bytes, &stats.LastHour, &oldest)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, s.failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes].
func (s *store) InboxState(ctx context.Context, inbox string) error {
	t := s.table(inbox)
	var columns []string
	err := s.writes.QueryRow(ctx, `SELECT coalesce(array_agg(attname::text), '{}') FROM pg_attribute
WHERE attrelid = `+regclass(t.quoted)+` AND attnum > 0 AND NOT attisdropped`).Scan(&columns)
	var version int
	if err == nil {
		err = s.writes.QueryRow(ctx, `SELECT version FROM `+s.inboxes()+` WHERE name = $1`, inbox).Scan(&version)
	}
	switch {
	case err == nil && len(columns) == 0, errors.Is(err, pgx.ErrNoRows), code(err) == undefinedTable:
		return fmt.Errorf("postgres: inbox %q: %w", inbox, transport.ErrNoQueue)
	case err != nil:
		return s.failed(err, "inspect inbox %q", inbox)
	case version > inboxVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, inboxVersion)}
	}
	for _, column := range []string{"key", "at", "sum"} {
		if !slices.Contains(columns, column) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table has no column %q: it is no inbox", column)}
		}
	}
	return nil
}
