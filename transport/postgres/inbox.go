package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.Breakable = (*handlerTx)(nil)

// recordKey returns the statement that records the key $first with its checksum, in a handler's
// transaction. It waits for another transaction that records the key. It fails if the key is not
// new.
func recordKey(inbox *table, first int) string {
	return fmt.Sprintf("INSERT INTO %s (key, sum) VALUES ($%d::uuid, $%d::int)", inbox.quoted, first, first+1)
}

// recordedBefore reports whether err is that of [recordKey] for a key that is not new.
func (t *table) recordedBefore(err error) bool {
	answer, ok := errors.AsType[*pgconn.PgError](err)
	return ok && answer.Code == uniqueViolation && quote(answer.SchemaName, answer.TableName) == t.quoted
}

// recorded is the part of a statement that inserts the keys of r and returns the new ones.
// Concurrent statements insert them in one order, so that none waits for another that waits for it.
func recorded(inbox *table, from string) string {
	return `new AS (INSERT INTO ` + inbox.quoted + ` (key, sum) SELECT key, sum FROM ` + from +
		` ORDER BY key ON CONFLICT DO NOTHING RETURNING key)`
}

// record returns the statement that records the keys $1 with the checksums $2, and inserts the rows
// that were sent with the new ones.
func record(inbox *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH r AS MATERIALIZED (
	SELECT key::uuid AS key, sum::int AS sum, n FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS r(key, sum, n)
), ` + recorded(inbox, "r") + `, gone AS (SELECT r.n FROM r JOIN new USING (key))`)
	inserts(&b, outs, 3)
	b.WriteString(" SELECT n, 0::bigint FROM gone" + unskipped(outs, 3))
	for i, o := range outs {
		if o.leased {
			fmt.Fprintf(&b, " UNION ALL SELECT seq, lease_id FROM out%d", i)
		}
	}
	return b.String()
}

// completionRecorded is [completion] with keys in $3 and their checksums in $4. It returns the
// number of each row whose lease is held, and whether its key is new: only then it deletes the row,
// and inserts those that were sent with it. IS TRUE has the server hash the new keys: it expects
// one row, and would join each with each.
func completionRecorded(q, inbox *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH held AS MATERIALIZED (
	SELECT q.ctid AS at, r.n, r.key::uuid AS key, r.sum::int AS sum FROM ` + q.quoted + ` AS q,
		unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY AS r(seq, lease_id, key, sum, n)
	WHERE ` + named + ` FOR UPDATE OF q
), ` + recorded(inbox, "held") + `, gone AS (SELECT at, n FROM held WHERE (key IN (SELECT key FROM new)) IS TRUE), deleted AS (
	DELETE FROM ` + q.quoted + ` WHERE ctid = ANY (ARRAY(SELECT at FROM gone))
)`)
	inserts(&b, outs, 5)
	b.WriteString(" SELECT n, n IN (SELECT n FROM gone) FROM held" + unskipped(outs, 5))
	return b.String()
}

// recorded marks the units whose key was not new, and sets the seqs of rows that were inserted with
// leases.
func (g *group) recorded(rows pgx.Rows) error {
	for _, u := range g.units {
		u.Handled = true
	}
	var n, lease int64
	_, err := pgx.ForEachRow(rows, []any{&n, &lease}, func() error {
		if lease == 0 {
			g.units[n-1].Handled = false
			return nil
		}
		for _, o := range g.outs {
			o.leasedAs(lease, n)
		}
		return nil
	})
	return err
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

// inboxStore is the part of a store with the ids of handled messages.
type inboxStore struct{ *db }

// FindHandled implements [tablequeue.Inboxes]. The keys are joined from outside by a LATERAL
// search, so that each is one search of the index whatever the statistics.
func (in *inboxStore) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	texts := make(array[text], len(keys))
	for i := range keys {
		texts[i] = text(uuid.Text(keys[i].ID))
	}
	states := make([]transport.HandledState, len(keys))
	var n int64
	var sum int32
	rows, err := in.query(ctx, in.leases, in.table(inbox).find, texts)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&n, &sum}, func() error {
			states[n-1] = transport.HandledOther
			if uint32(sum) == keys[n-1].Sum { //nolint:gosec // its bits
				states[n-1] = transport.Handled
			}
			return nil
		})
	}
	return states, in.failed(err, "look for handled messages in inbox %q", inbox)
}

// DueForForgetting implements [tablequeue.Inboxes]. The first process that marks a due inbox
// removes its old keys.
func (in *inboxStore) DueForForgetting(
	ctx context.Context, inbox string, pause time.Duration,
) (bool, error) {
	tag, err := in.execute(ctx, `UPDATE `+in.inboxVersions()+` SET forgotten_at = now()
WHERE name = $1 AND forgotten_at <= now() - $2::bigint * interval '1 microsecond'`, inbox, pause.Microseconds())
	return tag.RowsAffected() > 0, in.failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes]. The next call begins at the time that this one has
// reached: the index keeps the entries of rows that were deleted until they are vacuumed. The
// commit does not wait for the disk: ids that are back after a crash of the server are removed
// again.
func (in *inboxStore) Forget(
	ctx context.Context, inbox string, age time.Duration, limit int,
) (n int64, err error) {
	t := in.table(inbox)
	var reached int64
	rows, err := in.query(ctx, in.leases, t.forget, age.Microseconds(), limit, t.forgotten.Load())
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&n, &reached}, func() error { return nil })
	}
	if err != nil || n < int64(limit) {
		reached = 0
	}
	t.forgotten.Store(reached)
	return n, in.failed(err, "remove old ids from inbox %q", inbox)
}

// ForgetKeys implements [tablequeue.Inboxes].
func (in *inboxStore) ForgetKeys(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (int64, error) {
	texts := make([]string, len(keys))
	for i := range keys {
		texts[i] = uuid.Text(keys[i].ID)
	}
	tag, err := in.execute(ctx, in.table(inbox).forgetKeys, texts)
	return tag.RowsAffected(), in.failed(err, "remove ids from inbox %q", inbox)
}

// manyHandled is the number of the newest ids from whose age the number of an hour is estimated.
const manyHandled = "100000"

// InspectInbox implements [tablequeue.Inboxes]. It counts the rows of a small table, and estimates
// those of a larger one by its pages, with the density that vacuum found last, or else that of a
// table that is full.
func (in *inboxStore) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	t := in.table(inbox)
	stats := transport.InboxStats{Name: inbox}
	var oldest int64
	rows, err := in.query(ctx, in.writes, `SELECT
	CASE WHEN pg_relation_size(c.oid) < 16777216 THEN (SELECT count(*) FROM `+t.quoted+`)
		ELSE (pg_relation_size(c.oid) / 8192 * CASE WHEN c.relpages > 0 THEN c.reltuples / c.relpages ELSE 135 END)::bigint END,
	pg_total_relation_size(c.oid),
	(SELECT CASE WHEN count(*) < `+manyHandled+` THEN count(*)
		ELSE (count(*) * 3600 / greatest(1, extract(epoch FROM now() - min(at))))::bigint END
		FROM (SELECT at FROM `+t.quoted+` WHERE at > now() - interval '1 hour' ORDER BY at DESC LIMIT `+manyHandled+`) AS newest),
	coalesce((extract(epoch FROM now() - (SELECT at FROM `+t.quoted+` ORDER BY at LIMIT 1)) * 1000000)::bigint, 0)
FROM pg_class AS c WHERE c.oid = `+literal(t.quoted)+`::regclass`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&stats.Rows, &stats.Bytes, &stats.LastHour, &oldest}, func() error { return nil })
	}
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, in.failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes].
func (in *inboxStore) InboxState(ctx context.Context, inbox string) error {
	return in.inboxState(ctx, in.writes, inbox)
}

// inboxState looks in db, whose transaction it does not end by an error. A table with the columns
// of an inbox that has no version was not installed whole.
func (in *inboxStore) inboxState(ctx context.Context, db querier, inbox string) error {
	t := in.table(inbox)
	columns, version, err := in.versionedTable(ctx, db, t.quoted, inbox)
	switch {
	case err != nil:
		return in.failed(err, "inspect inbox %q", inbox)
	case len(columns) == 0:
		return fmt.Errorf("postgres: inbox %q: %w", inbox, transport.ErrNoQueue)
	case version > inboxVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, inboxVersion)}
	}
	for _, column := range inboxColumns {
		if !slices.Contains(columns, column) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table is no inbox: it has no column %q", column)}
		}
	}
	if version == 0 {
		return fmt.Errorf("postgres: inbox %q has no version: %w", inbox, transport.ErrNoQueue)
	}
	return nil
}

// versionedTable returns the columns of a table, none without the table, and its version among
// those of inboxes, 0 without one.
func (in *inboxStore) versionedTable(
	ctx context.Context, db querier, quoted, name string,
) (columns []string, version int, err error) {
	var versioned bool
	err = db.QueryRow(ctx, `SELECT coalesce(array_agg(attname::text), '{}'), `+regclass(in.inboxVersions())+` IS NOT NULL FROM pg_attribute
WHERE attrelid = `+regclass(quoted)+` AND attnum > 0 AND NOT attisdropped`).Scan(&columns, &versioned)
	if err == nil && versioned {
		err = db.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+in.inboxVersions()+` WHERE name = $1`, name).Scan(&version)
	}
	return columns, version, err
}

// inboxColumns are the columns of an inbox.
var inboxColumns = []string{"key", "at", "sum"}
