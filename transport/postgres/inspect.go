package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// inspector is the part of a store that looks at tables.
type inspector struct {
	*db
	routingAsked atomic.Bool
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Inspect implements [tablequeue.Topology].
func (in *inspector) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	t := in.table(queue)
	st := transport.QueueStats{Name: t.name}
	const live = ` WHERE expires IS NULL OR expires > now() AT TIME ZONE 'UTC'`
	var oldest int64
	err := in.writes.QueryRow(ctx, `SELECT
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
		err = in.writes.QueryRow(ctx, `SELECT count(*) FROM `+t.quoted+live).Scan(&st.Ready)
	}
	return st, in.failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology]. Queues are the tables that have the columns of one.
func (in *inspector) List(ctx context.Context) ([]string, error) {
	rows, _ := in.writes.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND 3 = (SELECT count(*) FROM pg_attribute a
	WHERE a.attrelid = c.oid AND a.attname IN ('visible_at', 'delivery_count', 'lease_id'))
ORDER BY 1`, in.Schema) // an error is that of rows too
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range names {
		names[i] = in.shortName(in.Schema, names[i])
	}
	return names, failure(err, "list queues")
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

// examined is the part of a queue's table that decides on findings.
type examined struct {
	Ours    bool // has our columns
	Text    bool // has ids of type text
	Unique  bool // has a unique index on id
	Adopted bool // was created by NServiceBus
	Timers  bool // has what named rows need
	Last    int64
	Most    int64 // the last value of seq
	Filters string
	Theirs  bool // NServiceBus's table of subscriptions is in the schema, and not used
}

func (in *inspector) examination(t *table) string {
	sequence := `pg_get_serial_sequence(` + literal(t.quoted) + `, 'seq')::regclass`
	return `SELECT ` + isOurs(t) + `, ` + idIs(t, "text") + `, ` + uniqueColumn(t, "id") + `, ` + isAdopted(t) + `, ` + in.hasTimers(t) + `,
	greatest(coalesce((SELECT max(seq) FROM ` + t.quoted + `), 0),
		CASE WHEN has_sequence_privilege(` + sequence + `, 'USAGE, SELECT') THEN pg_sequence_last_value(` + sequence + `) END),
	least((SELECT CASE WHEN atttypid = 'integer'::regtype THEN 2147483647 ELSE 9223372036854775807 END FROM pg_attribute
		WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'seq'), (SELECT seqmax FROM pg_sequence WHERE seqrelid = ` + sequence + `)),
	` + filters(regclass(t.quoted)) + `, ` + in.unsharedRouting()
}

func (in *inspector) examine(ctx context.Context, t *table) (examined, error) {
	rows, _ := in.writes.Query(ctx, in.examination(t), pgx.QueryExecModeExec) // an error is that of rows too
	e, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[examined])
	return e, in.failed(err, "look at queue %q", t.name)
}

// Examine implements [tablequeue.Examiner].
func (in *inspector) Examine(ctx context.Context, q transport.Queue) ([]tablequeue.Remark, error) {
	t := in.table(q.Name)
	e, err := in.examine(ctx, t)
	if err != nil {
		return nil, err
	}
	if e.Ours {
		t.takesRows.Store(true)
	}
	var all []tablequeue.Remark
	differs := func(text string) { all = append(all, tablequeue.Remark{State: transport.Differs, Text: text}) }
	if !e.Ours && !q.Shared {
		refused, err := in.refused(ctx, t)
		if err != nil {
			return nil, in.failed(err, "look at queue %q", q.Name)
		}
		if refused != "" {
			differs(refused)
		}
	}
	if e.Ours && q.Shared {
		switch {
		case e.Text:
			differs(`its ids are text, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`)
		case !e.Unique:
			differs(`it has no unique index on id, by which ServiceControl receives: "holdfast endpoint create --adopt" creates one`)
		}
	}
	if e.Ours && q.Timers && !e.Timers {
		differs(tablequeue.ErrNoTimers.Error())
	}
	note := func(text string) { all = append(all, tablequeue.Remark{State: transport.Noted, Text: text}) }
	if e.Adopted {
		note("it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again")
	}
	for _, text := range e.warnings() {
		note(text)
	}
	if e.Theirs && e.Ours && !q.Shared {
		note(routingAdvice)
	}
	return all, nil
}

// warnings returns the failures that e foretells.
func (e examined) warnings() (all []string) {
	if text := e.nearEnd(); text != "" {
		all = append(all, text)
	}
	if text := filterWarning(e.Filters); text != "" && e.Ours {
		all = append(all, text)
	}
	return all
}

// nearEnd returns the warning that the numbers of rows will be used up, from the half of them on.
func (e examined) nearEnd() string {
	if e.Last <= e.Most/2 {
		return ""
	}
	return fmt.Sprintf("seq has reached %d of %d, after which nothing can be sent to it: widen seq to bigint, as docs/transports/postgres.md describes", e.Last, e.Most)
}

// Warnings implements [tablequeue.Warner].
func (in *inspector) Warnings(ctx context.Context, queues []string) (all []string, err error) {
	for _, q := range queues {
		e, err := in.examine(ctx, in.table(q))
		if err != nil {
			return all, err
		}
		for _, text := range e.warnings() {
			all = append(all, fmt.Sprintf("queue %q: %s", q, text))
		}
	}
	return all, nil
}

// refused returns the text about a foreign table that cannot be taken over; empty where it can.
func (in *inspector) refused(ctx context.Context, t *table) (string, error) {
	rows, _ := in.writes.Query(ctx, problems(t), pgx.QueryExecModeExec) // an error is that of rows too
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) == 0 {
		return "", err
	}
	return refusal + strings.Join(found, "; "), nil
}

// filterWarning returns a text about filters, or "" without any.
func filterWarning(filters string) string {
	if filters == "" {
		return ""
	}
	return fmt.Sprintf("its table has %s: if that skips a row without an error, a message is lost or handled again. "+
		"Have triggers raise an exception or return the row, and give the endpoint's role BYPASSRLS or policies for all commands", filters)
}

// warnOfFilters logs the filters of a queue's table, once for each table.
func (in *inspector) warnOfFilters(ctx context.Context, t *table) error {
	var found string
	row := in.writes.QueryRow(ctx, "SELECT "+filters(regclass(t.quoted)), pgx.QueryExecModeExec)
	if err := row.Scan(&found); err != nil {
		return err
	}
	t.filtered.Store(found != "")
	t.filtersAt.Store(time.Now().UnixNano())
	if text := filterWarning(found); text != "" && t.filtersLogged.CompareAndSwap(false, true) {
		in.log.WarnContext(ctx, "a queue's table may keep messages out", slog.String("queue", t.name), slog.String("reason", text))
	}
	return nil
}

const routingAdvice = "the schema has a table SubscriptionRouting, as NServiceBus creates it, and SubscriptionRouting of the Transport is not set: " +
	"no event crosses between these endpoints and those of NServiceBus. Set it to \"SubscriptionRouting\" in every endpoint"

// warnOfRouting logs once that a table of subscriptions of NServiceBus is not used.
func (in *inspector) warnOfRouting(ctx context.Context) error {
	if in.Routing != "" || !in.routingAsked.CompareAndSwap(false, true) {
		return nil
	}
	var unshared bool
	err := in.writes.QueryRow(ctx, "SELECT "+in.unsharedRouting(), pgx.QueryExecModeExec).Scan(&unshared)
	if err != nil {
		in.routingAsked.Store(false)
		return err
	}
	if unshared {
		in.log.WarnContext(ctx, "events of NServiceBus are not subscribed to", slog.String("reason", routingAdvice))
	}
	return nil
}

// lockedTables reports which of the tables $1 another session has locked against inserts, or waits
// to lock: in PostgreSQL an insert queues behind a session that waits for such a lock. The
// statement itself waits for no lock.
const lockedTables = `SELECT EXISTS (SELECT FROM pg_locks AS l
	WHERE l.locktype = 'relation' AND l.relation = to_regclass(q.name)
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`

// Locked implements [tablequeue.Locks].
func (in *inspector) Locked(ctx context.Context, queues []string) ([]bool, error) {
	locked, err := in.ofTables(ctx, lockedTables, queues)
	return locked, in.failed(err, "look for locks")
}

const missingTables = `SELECT to_regclass(q.name) IS NULL FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`

// Missing implements [tablequeue.Topology].
func (in *inspector) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing, err := in.ofTables(ctx, missingTables, queues)
	return missing, in.failed(err, "look for tables")
}

// DueForSweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (in *inspector) DueForSweep(ctx context.Context) ([]string, error) {
	versions := in.versions()
	rows, _ := in.writes.Query(ctx, `UPDATE `+versions+` SET swept_at = now() WHERE name IN (
	SELECT name FROM `+versions+` WHERE swept_at <= now() - $1::bigint * interval '1 microsecond' FOR UPDATE SKIP LOCKED
) RETURNING name`, tablequeue.SweepPause.Microseconds()) // an error is that of rows too
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return queues, in.failed(err, "look for expired rows")
}

// SweepSome implements [tablequeue.Sweeper].
func (in *inspector) SweepSome(ctx context.Context, queue string) (int64, error) {
	tag, err := in.execute(ctx, in.table(queue).sweep)
	return tag.RowsAffected(), in.failed(err, "remove expired rows of queue %q", queue)
}
