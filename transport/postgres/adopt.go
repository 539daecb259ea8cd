package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	deadlockDetected = "40P01"
	uniqueViolation  = "23505"
)

var errNoSession = errors.New("a table is taken over in one session, which a proxy that pools transactions does not keep: " +
	"set ListenURL to the server behind the proxy")

// A piece is a part of an adoption, which is executed outside of transactions. Repeated it changes
// nothing.
type piece struct {
	of   string
	text string
	// generates reports whether text is a query for statements, which are executed one after the
	// other.
	generates bool
}

// adopter takes tables over in a session of its own, which has the advisory lock of installers.
type adopter struct {
	*installer
	session *pgx.Conn
}

// adopt installs plan, and takes over the tables of its queues that NServiceBus has created.
func (in *installer) adopt(ctx context.Context, plan transport.Plan) error {
	if in.listener == nil {
		return errNoSession
	}
	session, err := in.listener.connect(ctx, func(_ *pgconn.PgConn, n *pgconn.Notice) { in.noticed(ctx, n) })
	if err != nil {
		return err
	}
	defer closeSoon(session)
	a := &adopter{installer: in, session: session}
	if err := a.begin(ctx); err != nil {
		return err
	}
	if err := a.all(ctx, in.ddl.refusals(plan)); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, session, func(tx pgx.Tx) error { return in.installIn(ctx, tx, plan) }); err != nil {
		return err
	}
	if err := a.change(ctx, plan); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		in.table(q.Name).foreign.Store(false)
	}
	return nil
}

// change changes the tables: again where that was a deadlock, as with an installer of an earlier
// version, or where rows with equal ids were inserted meanwhile.
func (a *adopter) change(ctx context.Context, plan transport.Plan) (err error) {
	for range 5 {
		err = a.all(ctx, a.ddl.adoption(plan))
		if c := code(err); c != deadlockDetected && c != uniqueViolation {
			break
		}
	}
	return err
}

// noticed logs the progress that the server reports.
func (in *installer) noticed(ctx context.Context, n *pgconn.Notice) {
	level := slog.LevelInfo
	if n.Severity == "WARNING" {
		level = slog.LevelWarn
	}
	in.log.Log(ctx, level, n.Message) //nolint:sloglint // the texts are those of the statements
}

// adoptSettings are the settings of a session that takes tables over. An index may take longer than
// any statement of an endpoint.
const adoptSettings = `SET standard_conforming_strings = on; SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed'`

// begin makes the settings of the session and takes the lock of installers, without waiting in a
// transaction.
func (a *adopter) begin(ctx context.Context) error {
	if prepare := a.listener.config.AfterConnect; prepare != nil {
		if err := prepare(ctx, a.session); err != nil {
			return err
		}
	}
	if _, err := a.session.Exec(ctx, adoptSettings); err != nil {
		return err
	}
	pause, wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, a.waiting()
	for {
		var locked bool
		err := a.session.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+a.installKey()+`)`).Scan(&locked)
		if err != nil || locked {
			return err
		}
		wait(ctx)
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("wait for another installer: %w", err)
		}
	}
}

// all executes pieces.
func (a *adopter) all(ctx context.Context, pieces []piece) error {
	for _, p := range pieces {
		if err := a.one(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.of, err)
		}
	}
	return nil
}

func (a *adopter) one(ctx context.Context, p piece) error {
	if !p.generates {
		_, err := a.session.Exec(ctx, p.text, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	rows, _ := a.session.Query(ctx, p.text, pgx.QueryExecModeSimpleProtocol) // an error is that of rows too
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, text := range texts {
		if err == nil {
			err = a.slowly(ctx, p.of, text)
		}
	}
	return err
}

// slowly executes a statement that may wait for other sessions without blocking them, and logs the
// sessions that it waits for.
func (a *adopter) slowly(ctx context.Context, of, text string) error {
	watched, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	pid := a.session.PgConn().PID()
	watch.Go(func() {
		for pause := progressFirst; backoff.Sleep(watched, pause) == nil; pause = progressEvery {
			a.log.WarnContext(ctx, "taking a table over: a statement is still at work", slog.String("of", of),
				slog.String("waiting_for", a.blockers(watched, pid)), slog.String("statement", text))
		}
	})
	_, err := a.session.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	end()
	watch.Wait()
	return err
}

// blockers returns the sessions that pid waits for, empty where they cannot be seen.
func (in *installer) blockers(ctx context.Context, pid uint32) string {
	rows, _ := in.writes.Query(ctx, `SELECT `+sessionText+` FROM pg_stat_activity AS a WHERE a.pid = ANY (pg_blocking_pids($1))`, int32(pid)) //nolint:gosec // a process id
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return ""
	}
	return strings.Join(found, ", ")
}

// sessionText is the expression that describes the session a of pg_stat_activity.
const sessionText = `format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user'))`

// adoption returns the pieces that take over the tables of plan's queues, which exist: those of
// NServiceBus get the columns and indexes of a queue, except shared ones, which both systems use as
// they are. Tables of the version before get ids of type uuid. A kill at any point leaves a state
// that the pieces complete when they are repeated.
func (d *ddl) adoption(plan transport.Plan) (pieces []piece) {
	for _, q := range plan.Queues {
		t := d.table(q.Name)
		if !q.Shared {
			pieces = append(pieces, d.addColumns(t))
		}
		pieces = append(pieces, warnOfRewrite(t), d.widenID(t), giveUniqueIDs(t, q.Shared), dropInvalid(t))
		pieces = append(pieces, createMissing(t, q.Shared)...)
		pieces = append(pieces, d.finish(t))
	}
	return pieces
}

// columns that a foreign table lacks. The default of visible_at is evaluated once for all rows, so
// the table is not rewritten.
const adoptedColumns = `ADD COLUMN visible_at timestamptz NOT NULL DEFAULT statement_timestamp(),
	ADD COLUMN delivery_count integer NOT NULL DEFAULT 0, ADD COLUMN lease_id bigint, ADD COLUMN lease_owner text,
	ADD COLUMN last_error text, ALTER COLUMN id SET DEFAULT gen_random_uuid()`

func (d *ddl) addColumns(t *table) piece {
	return piece{of: ofQueue(t), text: repeated(t, "adding columns", "NOT "+isOurs(t), `ALTER TABLE `+t.quoted+` `+adoptedColumns+`;
			`+d.versioned(t, adoptingVersion))}
}

// uuidText matches text that is a UUID.
const uuidText = `'^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$'`

// warnOfRewrite returns the piece that reports, before it begins, that a table is locked for long.
func warnOfRewrite(t *table) piece {
	return piece{of: ofQueue(t), text: when(hasTextID(t), `RAISE WARNING 'queue %: its table (%) is rewritten for ids of type uuid, and is locked meanwhile; programs of an earlier version cannot use it afterwards: stop them', `+
		literal(t.name)+`, pg_size_pretty(pg_total_relation_size(`+regclass(t.quoted)+`))`)}
}

// hasTextID returns the condition that t is a queue of the version before.
func hasTextID(t *table) string { return idIs(t, "text") + ` AND ` + isOurs(t) }

func (d *ddl) widenID(t *table) piece {
	return piece{of: ofQueue(t), text: repeated(t, "changing the type of id", hasTextID(t), `ALTER TABLE `+t.quoted+` ALTER COLUMN id DROP DEFAULT,
				ALTER COLUMN id TYPE uuid USING CASE WHEN id ~* `+uuidText+` THEN id::uuid ELSE gen_random_uuid() END,
				ALTER COLUMN id SET DEFAULT gen_random_uuid();
			`+d.versioned(t, tableVersion))}
}

// giveUniqueIDs returns the piece that gives copies of a row a new id each.
func giveUniqueIDs(t *table, shared bool) piece {
	copies := `EXISTS (SELECT FROM ` + t.quoted + ` GROUP BY id HAVING count(*) > 1)`
	return piece{of: ofQueue(t), text: repeated(t, "giving rows ids of their own", wantsUniqueID(t, shared)+` AND `+copies, `UPDATE `+t.quoted+` SET id = gen_random_uuid() WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM (SELECT ctid, row_number() OVER (PARTITION BY id ORDER BY seq) AS n FROM `+t.quoted+`) AS r WHERE n > 1))`)}
}

// dropInvalid returns the piece that drops the indexes of which the creation was interrupted.
func dropInvalid(t *table) piece {
	names := []string{}
	for _, i := range adoptedIndexes(t) {
		names = append(names, literal(i.name))
	}
	return piece{of: ofQueue(t), generates: true, text: `SELECT 'DROP INDEX CONCURRENTLY ' || indexrelid::regclass FROM pg_index
WHERE indrelid = ` + regclass(t.quoted) + ` AND NOT indisvalid
AND indexrelid IN (` + `to_regclass(` + strings.Join(names, `), to_regclass(`) + `))`}
}

// adoptedIndex is an index that an adopted table needs.
type adoptedIndex struct {
	name    string // quoted, with its schema
	create  string
	missing string // a condition
}

func adoptedIndexes(t *table) []adoptedIndex {
	byName := func(suffix, unique, on string) adoptedIndex {
		plain := indexName(t, suffix)
		name := strings.TrimSuffix(t.quoted, quote(t.plain)) + plain
		return adoptedIndex{
			name: name, create: `CREATE ` + unique + `INDEX CONCURRENTLY ` + plain + ` ON ` + t.quoted + ` ` + on,
			missing: isOurs(t) + ` AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = ` + regclass(t.quoted) +
				` AND indexrelid = to_regclass(` + literal(name) + `) AND indisvalid)`,
		}
	}
	return []adoptedIndex{
		byName("_visible_at_seq_idx", "", "(visible_at, seq)"),
		byName("_expires_idx", "", "(expires) WHERE expires IS NOT NULL"),
		byName("_id_key", "UNIQUE ", "(id)"),
	}
}

func createMissing(t *table, shared bool) (pieces []piece) {
	for i, index := range adoptedIndexes(t) {
		missing := index.missing
		if i == 2 {
			missing = wantsUniqueID(t, shared)
		}
		pieces = append(pieces, piece{
			of: ofQueue(t) + ": create an index", generates: true,
			text: `SELECT ` + literal(index.create) + ` WHERE ` + missing,
		})
	}
	return pieces
}

// finish returns the piece that ends the adoption of a foreign table.
func (d *ddl) finish(t *table) piece {
	adopting := d.versionOf(t) + ` = ` + strconv.Itoa(adoptingVersion)
	return piece{of: ofQueue(t), text: repeated(t, "setting storage parameters", adopting, `ALTER TABLE `+t.quoted+` SET (`+storage+`);
			`+d.versioned(t, tableVersion))}
}

func ofQueue(t *table) string { return fmt.Sprintf("queue %q", t.name) }

// isOurs returns the condition that t exists with the columns of a lease.
func isOurs(t *table) string {
	return `EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'lease_id' AND NOT attisdropped)`
}

// idIs returns the condition that the ids of t are of a type.
func idIs(t *table, kind string) string {
	return `EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) +
		` AND attname = 'id' AND NOT attisdropped AND atttypid = ` + literal(kind) + `::regtype)`
}

// isAdopted returns the condition that t was created by NServiceBus and taken over: its seq is no
// identity column.
func isAdopted(t *table) string {
	return `(` + isOurs(t) + ` AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'seq' AND attidentity = ''))`
}

// wantsUniqueID returns the condition that t is a queue whose ids should have a unique index, and
// have none.
func wantsUniqueID(t *table, shared bool) string {
	wanted := isAdopted(t)
	if shared {
		wanted = isOurs(t)
	}
	return wanted + ` AND ` + idIs(t, "uuid") + ` AND NOT ` + uniqueColumn(t, "id")
}

// uniqueColumn returns the condition that t has a valid unique index on a column alone.
func uniqueColumn(t *table, column string) string {
	return `EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = ` + regclass(t.quoted) + ` AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
	AND i.indpred IS NULL AND i.indexprs IS NULL AND a.attname = ` + literal(column) + `)`
}

// adoptLockWait is the longest time that a change of a table waits for its lock, and keeps inserts
// waiting behind it.
const adoptLockWait = "50ms"

// repeated returns the statement that executes text in a transaction of its own: again, after a
// pause, while it does not get its locks in time. Where condition is false, which text brings
// about, it does nothing.
func repeated(t *table, doing, condition, text string) string {
	return do(`DECLARE
	said timestamptz := clock_timestamp() - interval '` + fmt.Sprint((progressEvery - progressFirst).Seconds()) + ` seconds';
	pause double precision := 0.05;
	refused boolean := true;
BEGIN
	WHILE refused AND (` + condition + `) LOOP
		refused := false;
		BEGIN
			PERFORM set_config('lock_timeout', '` + adoptLockWait + `', true);
			` + text + `;
		EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
			refused := true;
		END;
		COMMIT;
		IF refused THEN
			IF clock_timestamp() - said >= interval '` + fmt.Sprint(progressEvery.Seconds()) + ` seconds' THEN
				said := clock_timestamp();
				RAISE WARNING 'queue %: ` + doing + ` waits for a lock%', ` + literal(t.name) + `, ` + holders(t) + `;
			END IF;
			pause := least(1.5 * pause, 1);
			PERFORM pg_sleep(pause * (0.5 + random() / 2));
			COMMIT;
		END IF;
	END LOOP;
END`)
}

// holders returns the expression for a text about the sessions that have locked t.
func holders(t *table) string {
	return `coalesce((SELECT ' of ' || string_agg(` + sessionText + `, ', ') FROM pg_stat_activity AS a
				WHERE a.pid <> pg_backend_pid() AND a.pid IN (SELECT l.pid FROM pg_locks AS l WHERE l.granted AND l.relation = ` + regclass(t.quoted) + `
				AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))), '')`
}

// adoptScript returns the statements of an adoption as text for psql, which executes each by
// itself.
func (d *ddl) adoptScript(plan transport.Plan) string {
	var b strings.Builder
	b.WriteString("-- For psql, without --single-transaction.\n\\set ON_ERROR_STOP on\n\\set AUTOCOMMIT on\n" + adoptSettings + ";\n")
	b.WriteString(when(`NOT pg_try_advisory_lock(`+d.installKey()+`)`, d.busy()) + ";\n")
	writePieces(&b, d.refusals(plan))
	d.writeInstallation(&b, plan)
	writePieces(&b, d.adoption(plan))
	b.WriteString("SELECT pg_advisory_unlock(" + d.installKey() + ");\n")
	return b.String()
}

func writePieces(b *strings.Builder, pieces []piece) {
	for _, p := range pieces {
		b.WriteString(p.text)
		if p.generates {
			b.WriteString("\n\\gexec\n")
		} else {
			b.WriteString(";\n")
		}
	}
}

// refusals returns the pieces that fail where the table of a queue of plan is one of another kind,
// but not exactly one of NServiceBus. They change nothing.
func (d *ddl) refusals(plan transport.Plan) (pieces []piece) {
	for _, q := range plan.Queues {
		if q.Shared {
			continue
		}
		t := d.table(q.Name)
		found := `(SELECT string_agg(problem, '; ') FROM (` + problems(t) + `) AS p)`
		pieces = append(pieces, piece{of: ofQueue(t), text: when(
			regclass(t.quoted)+` IS NOT NULL AND NOT `+isOurs(t)+` AND `+found+` IS NOT NULL`,
			`RAISE EXCEPTION '%', `+literal(refusal)+` || `+found,
		)})
	}
	return pieces
}

const refusal = "its table cannot be taken over, because it is not exactly one of NServiceBus: "

// problems returns the query for the texts about what t has that a queue table of NServiceBus does
// not have, or lacks.
func problems(t *table) string {
	return strings.ReplaceAll(`WITH c AS (SELECT * FROM pg_class WHERE oid = @table),
a AS (SELECT * FROM pg_attribute WHERE attrelid = @table AND attnum > 0 AND NOT attisdropped),
wanted (name, types) AS (VALUES
	('id', ARRAY['uuid']), ('expires', ARRAY['timestamp without time zone']), ('headers', ARRAY['text']),
	('body', ARRAY['bytea']), ('seq', ARRAY['integer', 'bigint']))
SELECT problem FROM (
	SELECT CASE relkind WHEN 'r' THEN NULL WHEN 'p' THEN 'it is partitioned' WHEN 'v' THEN 'it is a view'
		WHEN 'm' THEN 'it is a materialized view' WHEN 'f' THEN 'it is a table of another server' ELSE 'it is no table' END AS problem FROM c
	UNION ALL SELECT 'it is unlogged or temporary' FROM c WHERE relpersistence <> 'p'
	UNION ALL SELECT 'it is a partition' FROM c WHERE relispartition
	UNION ALL SELECT 'it is part of an inheritance' FROM c WHERE NOT relispartition AND relkind = 'r'
		AND EXISTS (SELECT FROM pg_inherits WHERE inhrelid = @table OR inhparent = @table)
	UNION ALL SELECT 'it belongs to ' || quote_ident(pg_get_userbyid(relowner)) || ', whose rights this user does not have'
		FROM c WHERE NOT pg_has_role(relowner, 'USAGE')
	UNION ALL SELECT 'this user may not create indexes in the schema ' || relnamespace::regnamespace
		FROM c WHERE NOT has_schema_privilege(relnamespace, 'CREATE')
	UNION ALL SELECT 'it has row security' FROM c WHERE relrowsecurity OR relforcerowsecurity
		OR EXISTS (SELECT FROM pg_policy WHERE polrelid = @table)
	UNION ALL SELECT 'it has the trigger ' || quote_ident(tgname) FROM pg_trigger WHERE tgrelid = @table AND NOT tgisinternal
	UNION ALL SELECT 'it has the rule ' || quote_ident(rulename) FROM pg_rewrite, c WHERE ev_class = @table AND relkind = 'r'
	UNION ALL SELECT 'it has no column ' || name FROM wanted WHERE name NOT IN (SELECT attname FROM a)
	UNION ALL SELECT 'its column ' || name || ' is of type ' || format_type(atttypid, atttypmod) || ', not ' || array_to_string(types, ' or ')
		FROM wanted JOIN a ON attname = name WHERE format_type(atttypid, atttypmod) <> ALL (types)
	UNION ALL SELECT 'its column ' || name || ' is generated' FROM wanted JOIN a ON attname = name WHERE attgenerated <> ''
	UNION ALL SELECT 'its column ' || attname || ' may be null' FROM a WHERE attname IN ('id', 'headers', 'seq') AND NOT attnotnull
	UNION ALL SELECT 'it has the column ' || quote_ident(attname) FROM a WHERE attname NOT IN (SELECT name FROM wanted)
		AND NOT (lower(attname) = 'bodystring' AND attgenerated <> '' AND atttypid = 'text'::regtype)
	UNION ALL SELECT 'its column seq has no sequence' FROM a WHERE attname = 'seq' AND attidentity = ''
		AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = @table AND adnum = attnum AND pg_get_expr(adbin, adrelid) LIKE 'nextval(%')
	UNION ALL SELECT 'its column seq is not unique' FROM a WHERE attname = 'seq' AND NOT `+uniqueColumn(t, "seq")+`
	UNION ALL SELECT 'it has the unique index ' || indexrelid::regclass FROM pg_index WHERE indrelid = @table AND indisunique
		AND NOT (indnkeyatts = 1 AND indpred IS NULL AND indexprs IS NULL
			AND EXISTS (SELECT FROM a WHERE attnum = indkey[0] AND attname IN ('id', 'seq')))
	UNION ALL SELECT 'it has the constraint ' || quote_ident(conname) FROM pg_constraint WHERE conrelid = @table AND contype NOT IN ('p', 'u', 'n', 't')
	UNION ALL SELECT 'the table ' || conrelid::regclass || ' refers to it' FROM pg_constraint WHERE confrelid = @table AND conrelid <> @table
) AS p WHERE problem IS NOT NULL`, "@table", regclass(t.quoted))
}
