package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

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

// due is the time at which a timed row becomes visible, and expiry the time at which it expires.
const (
	due = `greatest(statement_timestamp(), CASE WHEN r.at = 0 THEN statement_timestamp() + r.after * interval '1 microsecond'
	ELSE timestamptz 'epoch' + r.at * interval '1 microsecond' END)`
	expiry = `CASE WHEN r.ttl > 0 THEN (` + due + ` + r.ttl * interval '1 microsecond') AT TIME ZONE 'UTC' END`
)

// insert returns the statement that inserts rows from arrays, which are the parameters from number
// first on: those of [out.sourceNames]. With owned the first array has the number of each row's
// unit. The id of each row is new: copies of one message are rows with ids of their own, and a
// foreign table has id as its primary key.
func insert(o *out, first int, owned bool) string {
	p := func(i int) string { return fmt.Sprintf("$%d", first+i) }
	names, arrays := o.sourceNames(), []string{}
	if owned {
		arrays = append(arrays, p(0)+"::bigint[]")
		names = "owner, " + names
	}
	for _, kind := range o.sourceTypes() {
		arrays = append(arrays, p(len(arrays))+"::"+kind+"[]")
	}
	columns, values := o.columns()
	if o.leased {
		names += ", lease"
		arrays = append(arrays, p(len(arrays))+"::bigint[]")
		values += fmt.Sprintf(leasing, len(arrays)+first, "r.lease", len(arrays)+first+1)
	}
	text := "INSERT INTO " + o.to.quoted + " (" + columns + ") SELECT " + values +
		" FROM unnest(" + strings.Join(arrays, ", ") + ") AS r(" + names + ")"
	if owned {
		text += " WHERE r.owner IN (SELECT n FROM gone)"
	}
	text += o.replacing()
	if o.leased {
		text += " RETURNING seq, lease_id"
	}
	return text
}

// leasing are the values of the columns with which a row is inserted as if a claim had leased it:
// until statement_timestamp()
// + $n microseconds, with a lease, and by the owner $n.
const leasing = ", statement_timestamp() + $%d::bigint * interval '1 microsecond', 1, %s, $%d::text"

// insertLone returns the statement that inserts one row, without arrays.
func insertLone(o *out, first int) string {
	columns, _ := o.columns()
	text := fmt.Sprintf("INSERT INTO %s (%s) VALUES ($%d, $%d", o.to.quoted, columns, first, first+1)
	if o.leased {
		return text + fmt.Sprintf(leasing, first+3, fmt.Sprintf("$%d::bigint", first+2), first+4) + ") RETURNING seq, lease_id"
	}
	return text + ")"
}

// columns returns the columns of an insert, and their values from a row r.
func (o *out) columns() (columns, values string) {
	switch {
	case o.foreign: // its id has no default
		return "id, headers, body, expires", "gen_random_uuid(), r.headers, r.body, " + expiry
	case o.leased:
		return "headers, body, visible_at, delivery_count, lease_id, lease_owner", "r.headers, r.body"
	case o.named:
		return "headers, body, visible_at, expires, name", "r.headers, r.body, " + due + ", " + namedExpiry + ", r.name::uuid"
	case o.timed:
		return "headers, body, visible_at, expires", "r.headers, r.body, " + due + ", " + expiry
	}
	return "headers, body", "r.headers, r.body"
}

// purgeForeign returns the statement that deletes the rows of a foreign table that no transaction
// has received.
func purgeForeign(t *table) string {
	return `DELETE FROM ` + t.quoted + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + t.quoted + ` FOR UPDATE SKIP LOCKED))`
}

// completion returns the statement that deletes rows of q by their seq in $1 and lease in $2, and
// inserts the rows that were sent with those that it has deleted.
func completion(q *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH gone AS (
	DELETE FROM ` + q.quoted + ` AS q USING unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n)
	WHERE ` + named + ` RETURNING r.n
)`)
	inserts(&b, outs, 3)
	b.WriteString(" SELECT n FROM gone" + unskipped(outs, 3))
	if q.filtered.Load() {
		b.WriteString(" UNION ALL SELECT " + skipsDelete + " FROM " + q.quoted +
			" AS q, unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(seq, lease_id, n) WHERE " + named + " AND r.n NOT IN (SELECT n FROM gone)")
	}
	return b.String()
}

// taking returns the statement that deletes a row of q, a foreign table, by its seq in $1 and id in
// $2, and inserts the rows that were sent with it. It skips a row that another transaction has
// received.
func taking(q *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH gone AS (
	DELETE FROM ` + q.quoted + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + q.quoted + `
		WHERE seq = $1 AND id::text = $2 FOR UPDATE SKIP LOCKED))
	RETURNING 1::bigint AS n
)`)
	inserts(&b, outs, 3)
	return b.String() + " SELECT n FROM gone" + unskipped(outs, 3)
}

// inserts adds the inserts of rows that are sent with those that the statement has deleted or
// recorded, which are in gone. Their parameters begin with number param.
func inserts(b *strings.Builder, outs []*out, param int) {
	for i, o := range outs {
		text := insert(o, param, true)
		if o.counted {
			text += " RETURNING 1"
		}
		fmt.Fprintf(b, ", out%d AS (%s)", i, text)
		param += len(o.args)
	}
}

const divisionByZero = "22012"

// removal returns the statement that deletes one row of q by its seq $1 and lease $2, and inserts
// the rows that were sent with it. Where the lease is lost it divides by zero, which ends the
// transaction. The divisor comes from a volatile function, as the planner would evaluate a constant
// expression even where it is not needed.
//
// With an inbox it records the key $3 with the checksum $4, as [recordKey] does.
func removal(q, inbox *table, outs []*out) string {
	var b strings.Builder
	b.WriteString(`WITH gone AS (DELETE FROM ` + q.quoted + ` WHERE seq = $1 AND lease_id = $2 AND ` + byKey + ` RETURNING 1)`)
	param := 3
	if inbox != nil {
		b.WriteString(", new AS (" + recordKey(inbox, 3) + ")")
		param = 5
	}
	var skips strings.Builder
	for i, o := range outs {
		text := insertOne(o, param)
		if o.counted {
			text += " RETURNING 1"
			fmt.Fprintf(&skips, " UNION ALL SELECT %s WHERE (SELECT count(*) FROM out%d) < %s", o.skips(i), i, o.wanted(param))
		}
		fmt.Fprintf(&b, ", out%d AS (%s)", i, text)
		param += len(o.args)
	}
	kept := ""
	if q.filtered.Load() {
		kept = "(SELECT " + skipsDelete + " FROM " + q.quoted + " AS q WHERE seq = $1 AND lease_id = $2 AND " + byKey + "), "
	}
	b.WriteString(" SELECT coalesce((SELECT 1 FROM gone), " + kept + "1 / (random() * 0)::int)")
	b.WriteString(skips.String())
	return b.String()
}

// wanted returns the expression for the number of rows that [insertOne] inserts from parameter
// number first on.
func (o *out) wanted(first int) string {
	if o.lone() {
		return "1"
	}
	return fmt.Sprintf("cardinality($%d)", first)
}

// insertOne returns the statement that inserts the rows that one unit sends to one queue.
func insertOne(o *out, first int) string {
	if o.lone() {
		return insertLone(o, first)
	}
	return insert(o, first, false)
}
