package postgres

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// schema is the tables of a database schema, by the names of their queues.
type schema struct {
	dialect.Settings
	adopts bool                 // the installer takes over tables of NServiceBus
	tables dialect.Memo[*table] // by queue
}

var _ transport.Addresser = (*schema)(nil)

// table returns the table of a queue, whose name Check has passed.
func (s *schema) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t
	}
	return s.tables.Add(queue, s.newTable(queue))
}

// Check implements [tablequeue.Queues].
func (s *schema) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	_, name, err := s.parse(queue)
	if err == nil && slices.Contains([]string{dialect.SubscriptionTable, dialect.VersionTable, dialect.RecordTable, s.Routing}, name) {
		err = fmt.Errorf("postgres: queue name %q is taken by a table of another kind", queue)
	}
	if err != nil {
		return &transport.NameError{Err: err}
	}
	return nil
}

// errAddress is why text that begins with a quotation mark is no queue. NServiceBus quotes the
// names of tables too.
var errAddress = errors.New(`it begins with a quotation mark, so it must be an address: "table" or "schema"."table", ` +
	`with each quotation mark within a name doubled`)

// parse returns the schema and the table of a queue. Text that does not begin with a quotation mark
// is the name of a table in the store's schema, also with dots.
func (s *schema) parse(queue string) (schema, table string, err error) {
	schema, table = s.Schema, queue
	if strings.HasPrefix(queue, `"`) {
		var ok bool
		if schema, table, ok = s.unquote(queue); !ok {
			return "", "", fmt.Errorf("postgres: queue %.300q: %w", queue, errAddress)
		}
	}
	return schema, table, errors.Join(checkName("schema", schema), checkName("queue", table))
}

// unquote reads an address.
func (s *schema) unquote(address string) (schema, table string, ok bool) {
	first, rest, ok := dialect.Unquote(address, '"', '"')
	if !ok || rest == "" {
		return s.Schema, first, ok
	}
	rest, dot := strings.CutPrefix(rest, ".")
	second, rest, ok := dialect.Unquote(rest, '"', '"')
	return first, second, dot && ok && rest == ""
}

// split is parse for a queue that Check has passed, or that the store itself has listed: versions
// before addresses took any text for the name of a table.
func (s *schema) split(queue string) (schema, table string) {
	schema, table, err := s.parse(queue)
	if err != nil {
		return s.Schema, queue
	}
	return schema, table
}

// shortName returns the name of the queue with that table.
func (s *schema) shortName(schema, table string) string {
	switch {
	case schema != s.Schema:
		return quote(schema, table)
	case strings.HasPrefix(table, `"`): // without quotation marks it would be an address
		return quote(table)
	}
	return table
}

// Address implements [transport.Addresser]: "schema"."table".
func (s *schema) Address(queue string) string {
	schema, table, err := s.parse(queue)
	if err != nil {
		return queue
	}
	return quote(schema, table)
}

// ShortName implements [transport.Addresser]: the table, with its schema where that is not the
// store's.
func (s *schema) ShortName(address string) string {
	if !strings.HasPrefix(address, `"`) {
		return address
	}
	schema, table, err := s.parse(address)
	if err != nil {
		return address
	}
	return s.shortName(schema, table)
}

// maxName is the longest identifier in bytes. PostgreSQL truncates longer ones without an error, so
// that two queues could become one.
const maxName = 63

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("postgres: %s name is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("postgres: %s name %.300q has %d bytes: PostgreSQL allows %d", what, name, len(name), maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("postgres: %s name %.300q is not text that PostgreSQL can store", what, name)
	}
	return nil
}

// truncated returns as much of name as fits into n bytes.
func truncated(name string, n int) string { return strings.ToValidUTF8(name[:min(n, len(name))], "") }

// quote returns the identifier of a name with any characters.
func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// versions returns the table of versions.
func (s *schema) versions() string { return quote(s.Schema, dialect.VersionTable) }

// versioned returns the statement that stores the version of a queue's table.
func (s *schema) versioned(t *table, version int) string {
	return `INSERT INTO ` + s.versions() + ` (name, version) VALUES (` + literal(t.name) + `, ` + strconv.Itoa(version) + `)
ON CONFLICT (name) DO UPDATE SET version = excluded.version`
}

// versionOf returns the expression for the version of a queue's table that exists. A table without
// a version is of the first that had its type of id.
func (s *schema) versionOf(t *table) string {
	return `coalesce((SELECT version FROM ` + s.versions() + ` WHERE name = ` + literal(t.name) + `),
	(SELECT CASE WHEN atttypid = 'uuid'::regtype THEN ` + strconv.Itoa(tableVersion) + ` ELSE 1 END FROM pg_attribute
		WHERE attrelid = ` + regclass(t.quoted) + ` AND attname = 'id' AND NOT attisdropped), 1)`
}

const nameIndex = "_name_key"

// hasTimers returns the condition that a queue's table has what named rows need. The index is
// created after the column.
func (s *schema) hasTimers(t *table) string {
	schema, _ := s.split(t.name)
	return `to_regclass(` + literal(quote(schema)+"."+indexName(t, nameIndex)) + `) IS NOT NULL`
}

// installLock returns the statement that fails with installerBusy while another process installs in
// the schema. It does not wait: a transaction that waits keeps indexes from being created
// concurrently.
func (s *schema) installLock() string {
	return when(`NOT pg_try_advisory_xact_lock(`+s.installKey()+`)`, s.busy())
}

// busy returns the statement that fails because another process installs.
func (s *schema) busy() string {
	return `RAISE EXCEPTION USING ERRCODE = '` + installerBusy + `', MESSAGE = ` +
		literal("another installer is at work in schema "+quote(s.Schema)+": run this again")
}

// installKey returns the expression for the key of the advisory lock that installers take.
func (s *schema) installKey() string {
	return `hashtextextended(` + literal("holdfast install "+s.Schema) + `, 0)`
}

// inboxVersions returns the table with the versions of inboxes. It is not that of queues: programs of an
// earlier version remove expired rows from every name in that table.
func (s *schema) inboxVersions() string { return quote(s.Schema, dialect.InboxTable) }

// recordTable returns the table of records.
func (s *schema) recordTable() string { return quote(s.Schema, dialect.RecordTable) }

// heardOf returns the channel of each of queues, and its name in notifications.
func (s *schema) heardOf(queues []string) (channels, names []string) {
	for _, q := range queues {
		schema, plain := s.split(q)
		channels, names = append(channels, channelOf(schema)), append(names, plain)
	}
	return channels, names
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

// Foreign implements [tablequeue.Foreign].
func (s *schema) Foreign(queue string) bool { return s.table(queue).foreign.Load() }

// table is a queue's table with its statements.
type table struct {
	name      string      // the queue
	plain     string      // without a schema
	quoted    string      // with its schema, for use in statements
	foreign   atomic.Bool // a foreign table
	takesRows atomic.Bool // a caller's transaction can insert rows, as far as is known
	front     front

	filtersLogged atomic.Bool
	filtersAt     atomic.Int64 // when lookAtFilters looked, in nanoseconds since 1970
	filtered      atomic.Bool  // by that look
	largeUntil    atomic.Int64 // in nanoseconds since 1970: until then the table is taken to be large
	claim, renew, abandon, orphans, restore,
	cancel, update, sweep, purge, lock, take, byIndex string
	find, record, forget, forgetKeys string       // of an inbox
	forgotten                        atomic.Int64 // the time, in microseconds since 1970, up to which old ids were removed
}

// In the statements q is a queue's table and r an array of parameters. A statement returns the
// numbers n, from 1, of the array's elements that hit a row, as a batch may have two leases of one
// row. Durations are in microseconds.

func (s *schema) newTable(queue string) *table {
	schema, plain := s.split(queue)
	q := quote(schema, plain)
	t := &table{name: queue, plain: plain, quoted: q}

	// The rows are locked before they are updated, so that no two claims wait for each other. Their
	// ctid then cannot change, and is found faster than seq. As many rows are claimed as fit into
	// the bytes: the size of a value is known without reading it. The first row of the result is
	// about the claim: the place that it has reached, its duration in microseconds and, without
	// rows, when the next is due; with rows, the negative time of the server. Rows that were
	// inserted or retried within the last 250 ms may not be committed yet, so the place is no later
	// than that, and without rows it is that time.
	t.claim = `WITH due AS MATERIALIZED (
	SELECT ctid, visible_at, seq, octet_length(headers) AS headers, coalesce(octet_length(body), 0) AS body FROM ` + q + `
	WHERE (visible_at, seq) > ($5::timestamptz, $6::bigint) AND visible_at <= now()
	ORDER BY visible_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED
), fit AS MATERIALIZED (
	SELECT ctid, visible_at, seq FROM (
		SELECT ctid, visible_at, seq, sum(headers) OVER sofar + sum(body) OVER sofar AS total, headers::bigint + body AS size
		FROM due WINDOW sofar AS (ROWS UNBOUNDED PRECEDING)) AS summed
	WHERE total <= $7::bigint OR total = size
), got AS (
	UPDATE ` + q + ` SET delivery_count = delivery_count + 1,
		visible_at = now() + $2::bigint * interval '1 microsecond', lease_id = $3, lease_owner = $4
	WHERE ctid = ANY (ARRAY(SELECT ctid FROM fit))
	RETURNING seq, id::text AS id, headers, body, delivery_count, coalesce(expires <= now() AT TIME ZONE 'UTC', false) AS expired
)
SELECT 0::bigint AS seq, (extract(epoch FROM greatest(reached.visible_at, timestamptz 'epoch')) * 1000000)::bigint::text AS id, reached.seq::text AS headers, NULL::bytea AS body,
	(extract(epoch FROM clock_timestamp() - now()) * 1000000)::integer AS delivery_count, false AS expired,
	CASE WHEN EXISTS (SELECT FROM fit) THEN -(extract(epoch FROM now()) * 1000000)::bigint ELSE coalesce((extract(epoch FROM (
		SELECT least(visible_at, now() + interval '1 day') FROM ` + q + ` WHERE visible_at > now() ORDER BY visible_at, seq LIMIT 1
	) - now()) * 1000000)::bigint, 0) END AS next
FROM (
	SELECT visible_at, seq FROM (
		(SELECT visible_at, seq FROM fit ORDER BY visible_at DESC, seq DESC LIMIT 1)
		UNION ALL SELECT now() - interval '250 milliseconds', 0) AS places
	ORDER BY visible_at, seq LIMIT 1) AS reached
UNION ALL
SELECT seq, id, headers, body, delivery_count, expired, 0 FROM got`

	t.renew = `UPDATE ` + q + ` AS q SET visible_at = now() + $1::bigint * interval '1 microsecond'
FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n)
WHERE ` + named + ` RETURNING r.n`

	// A row that a handler's transaction has locked is skipped.
	abandon := `UPDATE ` + q + ` SET visible_at = now(), lease_id = NULL, lease_owner = NULL
WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + `
	WHERE visible_at > now() AND visible_at <= now() + $2::bigint * interval '1 microsecond' AND `
	t.abandon = abandon + `lease_owner = $1 FOR UPDATE SKIP LOCKED))`
	t.orphans = abandon + `lease_id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))`
	t.byIndex = `SELECT set_config('enable_seqscan', 'off', true),
	coalesce(pg_relation_size(` + regclass(q) + `), 0) >= ` + strconv.Itoa(largeTable)
	t.lock = `SELECT seq FROM ` + q + ` WHERE seq = $1 AND lease_id = $2 AND ` + byKey + ` FOR UPDATE`

	// A row that expires while its message is being handled is not removed.
	t.sweep = `DELETE FROM ` + q + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + `
	WHERE expires <= now() AT TIME ZONE 'UTC' AND (lease_id IS NULL OR visible_at <= now())
	ORDER BY expires LIMIT ` + strconv.Itoa(tablequeue.MaxSwept) + ` FOR UPDATE SKIP LOCKED))`

	t.restore = restoring(q)
	t.purge = `DELETE FROM ` + q + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q + ` WHERE visible_at <= now() FOR UPDATE SKIP LOCKED))`
	t.cancel = `DELETE FROM ` + q + ` WHERE seq = $1 AND delivery_count = 0 AND ` + byKey
	t.take = `UPDATE ` + q + ` SET lease_id = $1 WHERE seq = $2 AND visible_at <= now() AND ` + byKey

	t.update = `UPDATE ` + q + ` AS q SET visible_at = now() + r.after * interval '1 microsecond',
	delivery_count = greatest(0, q.delivery_count - r.undo), lease_id = NULL, lease_owner = NULL,
	last_error = coalesce(nullif(r.note, ''), q.last_error)
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) WITH ORDINALITY AS r(seq, lease_id, after, undo, note, n)
WHERE ` + named + ` RETURNING r.n`
	t.inboxStatements()
	return t
}

// Statements that name rows by seq have to find them by the primary key. For a queue that was
// vacuumed while it was empty the planner expects no rows, until statistics are gathered again.
// Every index and every order of a join then has the same cost, and the planner may choose to read
// a whole index for each row. Conditions that are always true prevent that.
//
// byKey raises the cost of the index by visible_at, whose second column is seq, above that of the
// primary key. A search of an index for an array of two counts as two searches (btcostestimate;
// from PostgreSQL 17 on only where the index has more than three pages). For an array of one, a
// condition on an index costs more than a filter (cost_qual_eval counts half an operator,
// genericcostestimate a whole one).
//
// named compares seq with an array of one, by which the server can neither merge nor hash: it has
// to search the index for each element. Its byKey depends on the element, or the server could begin
// with q.
const (
	byKey = `visible_at >= ANY (ARRAY[timestamptz '-infinity']) AND visible_at >= ANY (ARRAY[timestamptz '-infinity', '-infinity'])`
	named = `q.seq = ANY (ARRAY[r.seq]) AND q.lease_id = r.lease_id
	AND q.visible_at >= ANY (ARRAY[` + ever + `]) AND q.visible_at >= ANY (ARRAY[` + ever + `, ` + ever + `])`
	ever = `CASE WHEN r.n > 0 THEN timestamptz '-infinity' END`
)

// inboxStatements sets the statements of an inbox.
func (t *table) inboxStatements() {
	t.record = recordKey(t, 1)
	t.find = `SELECT r.n, i.sum FROM unnest($1::text[]) WITH ORDINALITY AS r(key, n),
	LATERAL (SELECT sum FROM ` + t.quoted + ` WHERE key = r.key::uuid OFFSET 0) AS i`
	// Rows are deleted in the order of their ctid, whichever statement deletes them, so that no
	// deadlock is possible. To lock them before, as other statements do, would write a second
	// record to the WAL for each.
	t.forget = `WITH gone AS (
	DELETE FROM ` + t.quoted + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + t.quoted + `
		WHERE at >= timestamptz 'epoch' + $3::bigint * interval '1 microsecond' AND at < now() - $1::bigint * interval '1 microsecond'
		ORDER BY at LIMIT $2::bigint))
	RETURNING at
) SELECT count(*), coalesce((extract(epoch FROM max(at)) * 1000000)::bigint, 0) FROM gone`
	t.forgetKeys = `DELETE FROM ` + t.quoted + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + t.quoted + `
	WHERE key = ANY ($1::text[]::uuid[])))`
}

// literals returns texts as a list of string literals.
func literals(texts []string) string {
	all := make([]string, len(texts))
	for i, s := range texts {
		all[i] = literal(s)
	}
	return "(" + strings.Join(all, ", ") + ")"
}

// literal returns s as a string literal.
func literal(s string) string { return `'` + strings.ReplaceAll(s, `'`, `''`) + `'` }

// regclass returns the expression for a table, which is null where there is none.
func regclass(quoted string) string { return `to_regclass(` + literal(quoted) + `)` }

// do returns a DO statement with body, in dollar quotes that body does not contain.
func do(body string) string {
	quote := "$do$"
	for n := 1; strings.Contains(body, quote); n++ {
		quote = fmt.Sprintf("$do%d$", n)
	}
	return "DO " + quote + "\nBEGIN " + body + ";\nEND " + quote
}

// when returns the DO statement that executes text where condition holds.
func when(condition, text string) string {
	return do("IF " + condition + " THEN\n" + text + ";\nEND IF")
}

// indexName returns the quoted name that the server would choose, with a hash where that would be
// too long.
func indexName(t *table, suffix string) string {
	queue := t.plain
	if len(queue)+len(suffix) > maxName {
		h := fnv.New64a()
		_, _ = h.Write([]byte(queue))
		suffix = fmt.Sprintf("_%016x%s", h.Sum64(), suffix)
		queue = truncated(queue, maxName-len(suffix))
	}
	return quote(queue + suffix)
}
