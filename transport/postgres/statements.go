package postgres

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
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

// A row with a name is inserted, or replaces the row with that name, by one statement, which finds
// that row by the unique index on name whatever the statistics, and which is the same for a row
// that is only removed: such a row replaces the other as one that has expired, which the next claim
// deletes. So rows are locked in the order of their names, and no two transactions wait for each
// other.
//
// The row gets the seq and the id of a new one: a lease, a receipt or a page of a tool that names
// the row before misses it.

// removed is the ttl, as a parameter, of a row that removes the one with its name.
const removed = -1

// namedExpiry is [expiry] of a row with a name.
const namedExpiry = `CASE WHEN r.ttl < 0 THEN timestamp 'epoch' ELSE ` + expiry + ` END`

// replacing returns the end of an insert of named rows; "" of others.
func (o *out) replacing() string {
	if !o.named {
		return ""
	}
	return ` ORDER BY r.name::uuid
ON CONFLICT (name) WHERE name IS NOT NULL DO UPDATE SET seq = excluded.seq, id = excluded.id, headers = excluded.headers, body = excluded.body,
	visible_at = excluded.visible_at, expires = excluded.expires, delivery_count = 0, lease_id = NULL, lease_owner = NULL, last_error = NULL`
}

// namesOf returns the names of rows as texts.
func namesOf(rows []*tablequeue.Row) array[text] {
	names := make(array[text], len(rows))
	for i, r := range rows {
		names[i] = text(uuid.Text(r.Name))
	}
	return names
}

// skipped begins the text of the error by which the statement of a counted insert fails. A cast of
// the text fails.
const skipped = "a trigger, a rule or a policy of the table has skipped a row; rows written: "

// skipsDelete is an expression for a row of q that was to be deleted and is there. It fails.
var skipsDelete = "(" + literal(skipped+"0, row ") + " || q.seq)::bigint"

// countedInsert returns the statement that inserts the rows of o and returns their seqs, or fails
// when a row was skipped. Want is the expression for the number of rows.
func (o *out) countedInsert(insert, want string) string {
	return "WITH out0 AS (" + insert + " RETURNING seq) SELECT seq FROM out0 UNION ALL SELECT " + o.skips(0) +
		" WHERE (SELECT count(*) FROM out0) < " + want
}

// skips returns an expression that fails, with the number of the rows that output i of a statement
// has inserted. The planner cannot evaluate the expression before.
func (o *out) skips(i int) string {
	return fmt.Sprintf("(%s || (SELECT count(*) FROM out%d))::bigint", literal(skipped), i)
}

// unskipped returns the condition that no counted insert of a statement has skipped a row of a unit
// in gone, or "". The parameters of the inserts begin with number param.
func unskipped(outs []*out, param int) string {
	var all []string
	for i, o := range outs {
		if o.counted {
			all = append(all, fmt.Sprintf(`(SELECT CASE WHEN (SELECT count(*) FROM out%d) < (SELECT count(*) FROM unnest($%d::bigint[]) AS o(n) JOIN gone USING (n)) THEN %s END) IS NULL`,
				i, param, o.skips(i)))
		}
		param += len(o.args)
	}
	if len(all) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(all, " AND ")
}

func leasesOf(units []*tablequeue.Unit) (seqs, ids array[number]) {
	seqs, ids = make(array[number], len(units)), make(array[number], len(units))
	for i, u := range units {
		seqs[i], ids[i] = number(u.Lease.Seq), number(u.Lease.ID)
	}
	return seqs, ids
}

// arrays are the parameters of an insert.
func (o *out) arrays() []any {
	n := len(o.rows)
	headers, bodies := make(array[text], n), make(array[blob], n)
	for i, r := range o.rows {
		headers[i], bodies[i] = textOf(r.Headers), r.Body
	}
	if o.leased {
		leases := make(array[number], n)
		for i, r := range o.rows {
			leases[i] = number(r.Lease)
		}
		return []any{headers, bodies, leases, number(o.unit.LeaseFor.Microseconds()), text(o.unit.LeaseOwner)}
	}
	if !o.timed {
		return []any{headers, bodies}
	}
	at, after, ttl := make(array[number], n), make(array[number], n), make(array[number], n)
	for i, r := range o.rows {
		at[i], after[i], ttl[i] = timesOf(r)
	}
	if o.named {
		return []any{headers, bodies, at, after, ttl, namesOf(o.rows)}
	}
	return []any{headers, bodies, at, after, ttl}
}

// timesOf returns the times of a row as parameters: when it is due, or 0, its delay, and its time
// to live.
func timesOf(r *tablequeue.Row) (at, after, ttl number) {
	if !r.At.IsZero() {
		at = number(r.At.UnixMicro())
	}
	if r.Removes {
		return 0, 0, removed
	}
	return at, number(r.After.Microseconds()), number(r.TTL.Microseconds())
}

// lone reports whether o is one row that is visible at once, which needs no arrays.
func (o *out) lone() bool { return len(o.rows) == 1 && !o.timed }

// values are the parameters of an insert in a handler's transaction.
func (o *out) values() []any {
	if !o.lone() {
		return o.arrays()
	}
	r := o.rows[0]
	args := []any{string(textOf(r.Headers)), bytesOf(r.Body)}
	if o.leased {
		args = append(args, r.Lease, o.unit.LeaseFor.Microseconds(), o.unit.LeaseOwner)
	}
	return args
}

// array is a parameter of the engine's statements. It is encoded in one piece: pgx encodes element
// by element, and copies the headers and bodies of a batch each time its buffer grows.
type array[E element] []E

// element is a value of an array.
type element interface {
	number | text | blob
	oid() uint32
	size() int // in bytes
	appendTo(buf []byte) []byte
}

// The elements of arrays.
type (
	number int64  // bigint
	text   string // text
	blob   []byte // bytea; nil is empty, as NServiceBus cannot read null
)

func (number) oid() uint32 { return pgtype.Int8OID }

func (text) oid() uint32 { return pgtype.TextOID }

func (blob) oid() uint32 { return pgtype.ByteaOID }

func (number) size() int { return 8 }

func (t text) size() int { return len(t) }

func (b blob) size() int { return len(b) }

func (n number) appendTo(buf []byte) []byte { return binary.BigEndian.AppendUint64(buf, uint64(n)) }

func (t text) appendTo(buf []byte) []byte { return append(buf, t...) }

func (b blob) appendTo(buf []byte) []byte { return append(buf, b...) }

// textOf returns b as text without a copy. The text is valid until b changes.
func textOf(b []byte) text { return text(unsafe.String(unsafe.SliceData(b), len(b))) }

// appendTo appends the array in PostgreSQL's binary format (array_recv in arrayfuncs.c): the number
// of dimensions, a flag for nulls, the element type, the length, the first index, and then each
// element after its size.
func (a array[E]) appendTo(buf []byte) []byte {
	const lead, dimensions, nulls, first = 20, 1, 1, 1
	size := lead
	for _, e := range a {
		size += 4 + e.size()
	}
	buf = slices.Grow(buf, size)
	var e E
	for _, n := range []uint32{dimensions, nulls, e.oid(), uint32(len(a)), first} {
		buf = binary.BigEndian.AppendUint32(buf, n)
	}
	for _, e := range a {
		buf = binary.BigEndian.AppendUint32(buf, uint32(int32(e.size())))
		buf = e.appendTo(buf)
	}
	return buf
}

// arrayCodec is pgx's codec with support for array.
type arrayCodec struct{ pgtype.Codec }

// useArrays registers arrayCodec for a connection.
func useArrays(m *pgtype.Map) {
	for _, oid := range []uint32{pgtype.Int8ArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID} {
		if t, ok := m.TypeForOID(oid); ok {
			m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{t.Codec}})
		}
	}
}

// PlanEncode implements [pgtype.Codec].
func (c arrayCodec) PlanEncode(
	m *pgtype.Map, oid uint32, format int16, value any,
) pgtype.EncodePlan {
	if _, ok := value.(appender); ok && format == pgtype.BinaryFormatCode {
		return arrayPlan{}
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

type appender interface{ appendTo(buf []byte) []byte }

type arrayPlan struct{}

// Encode implements [pgtype.EncodePlan].
func (arrayPlan) Encode(value any, buf []byte) ([]byte, error) {
	a, ok := value.(appender)
	if !ok {
		return nil, fmt.Errorf("%T is no array", value)
	}
	return a.appendTo(buf), nil
}

// plain replaces arrays by slices, which every connection can encode.
func plain(arrays []any) []any {
	for i, a := range arrays {
		switch a := a.(type) {
		case array[text]:
			arrays[i] = convert(a, func(t text) string { return string(t) })
		case array[number]:
			arrays[i] = convert(a, func(n number) int64 { return int64(n) })
		case array[blob]:
			arrays[i] = convert(a, func(b blob) []byte { return bytesOf(b) })
		}
	}
	return arrays
}

// bytesOf returns body, and an empty slice for nil, which would be null.
func bytesOf(body []byte) []byte {
	if body == nil {
		return []byte{}
	}
	return body
}

func convert[To any, From element](a array[From], to func(From) To) []To {
	all := make([]To, len(a))
	for i, e := range a {
		all[i] = to(e)
	}
	return all
}

// sourceNames are the names of the parameters of a row.
func (o *out) sourceNames() string {
	switch {
	case o.named:
		return "headers, body, at, after, ttl, name"
	case o.timed:
		return "headers, body, at, after, ttl"
	}
	return "headers, body"
}

// sourceTypes are the types of the parameters of a row.
func (o *out) sourceTypes() []string {
	types := []string{"text", "bytea", "bigint", "bigint", "bigint", "text"}
	switch {
	case o.named:
		return types
	case o.timed:
		return types[:5]
	}
	return types[:2]
}

// filters returns the SQL expression for the parts of the table oid that can keep rows from being
// inserted, deleted or read, as a text, or ” without any. A trigger that is executed before each
// row can skip the row (PostgreSQL 15, "Overview of Trigger Behavior"). row_security_active is
// false for an owner and a role that bypass policies.
func filters(oid string) string {
	return `array_to_string(ARRAY(
	SELECT 'trigger ' || quote_ident(tgname) FROM pg_trigger
	WHERE tgrelid = ` + oid + ` AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 AND tgtype & 12 <> 0
	UNION ALL SELECT 'rule ' || quote_ident(rulename) FROM pg_rewrite WHERE ev_class = ` + oid + ` AND ev_enabled IN ('O', 'A')
	UNION ALL SELECT 'row level security' WHERE row_security_active(` + oid + `)
	ORDER BY 1), ', ')`
}
