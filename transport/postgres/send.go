package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// writer is the part of a store that executes units.
type writer struct {
	*db
	detector   dialect.Detector     // of foreign tables
	statements dialect.Memo[string] // text of composed statements by their shape
}

// Flush implements [tablequeue.Queues] in one round trip and one transaction. It has one statement
// for each queue that is settled, which also inserts the messages sent with its completions, and
// one for each queue that is only sent to.
func (w *writer) Flush(ctx context.Context, units []*tablequeue.Unit) error {
	return w.failed(w.flush(ctx, units, func(*pgx.Batch) {}), "write")
}

// flush executes units in a batch that prepare begins.
func (w *writer) flush(
	ctx context.Context, units []*tablequeue.Unit, prepare func(*pgx.Batch),
) error {
	return w.detector.Repeat(ctx, units, func() error {
		b := w.batch(w.writes)
		prepare(b)
		first := b.Len()
		var statements []tablequeue.StatementError
		groups := w.groups(units)
		w.lookAtFilters(ctx, groups)
		for _, g := range groups {
			w.queue(b, g)
			statements = append(statements, g.statements()...)
		}
		failed, err := w.write(ctx, b)
		if i := failed - first; err != nil && i >= 0 && i < len(statements) {
			at := statements[i]
			at.Err, err = err, &at
		}
		return timerless(err, units...)
	})
}

// statements returns errors without a cause for the statements that queue adds.
func (g *group) statements() (all []tablequeue.StatementError) {
	if g.verb != tablequeue.Send {
		return []tablequeue.StatementError{{Units: g.units}}
	}
	for _, o := range g.outs {
		all = append(all, tablequeue.StatementError{Units: g.units, Queue: o.to.name})
	}
	return all
}

// write sends a batch for s.writes. With an error it returns the index of the statement that
// failed, or a larger one.
func (d *db) write(ctx context.Context, b *pgx.Batch) (failed int, err error) {
	conn, err := d.writes.Acquire(ctx)
	if err != nil {
		return unsent, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	defer conn.Release()
	if conn.Conn().IsClosed() {
		return unsent, errNoConnection
	}
	results := conn.SendBatch(ctx, b)
	failed, err = firstFailed(b, results)
	return failed, d.sent(cmp.Or(err, results.Close()))
}

// unsent is the index of the failed statement of a batch that was not sent.
const unsent = math.MaxInt

// firstFailed reads the results of b until a statement fails, and returns the index of the
// statement.
func firstFailed(b *pgx.Batch, results pgx.BatchResults) (int, error) {
	for i, q := range b.QueuedQueries {
		if q.Fn != nil {
			if err := q.Fn(results); err != nil {
				return i, err
			}
		} else if _, err := results.Exec(); err != nil {
			return i, err
		}
	}
	return unsent, nil
}

// group is the units that one statement settles.
type group struct {
	queue *table // nil where units only send
	inbox *table // nil where no key is recorded
	verb  tablequeue.Verb
	units []*tablequeue.Unit
	outs  []*out
}

// out is the rows that a group sends to one queue.
type out struct {
	to      *table
	owners  array[number] // of each row: the number of its unit
	rows    []*tablequeue.Row
	timed   bool
	named   bool                  // all of its rows have a name; always timed
	names   map[[16]byte]struct{} // of the first rows, once [out.has] has looked at them
	foreign bool                  // a foreign table; always timed
	seqs    bool                  // the caller wants their seq
	counted bool                  // the table can skip rows: the statement fails if it has
	leased  bool                  // the rows are inserted with leases, which are those of unit
	unit    *tablequeue.Unit
	args    []any
}

// groups sorts units by queue, inbox and verb. Retry and Release are the same statement, and so the
// same group, and so are Send and Record without a key.
func (w *writer) groups(units []*tablequeue.Unit) []*group {
	var groups []*group
	for _, u := range units {
		verb := u.Verb
		switch {
		case verb == tablequeue.Release:
			verb = tablequeue.Retry
		case verb == tablequeue.Record && u.Key == nil:
			verb = tablequeue.Send
		}
		i := slices.IndexFunc(groups, func(g *group) bool {
			return g.verb == verb && (verb == tablequeue.Send ||
				(g.queue == nil || g.queue.name == u.Queue) && g.fits(u) && g.records(u)) && !g.renames(u)
		})
		if i < 0 {
			g := &group{verb: verb}
			if verb != tablequeue.Send && verb != tablequeue.Record {
				g.queue = w.table(u.Queue)
			}
			if u.Key != nil {
				g.inbox = w.table(u.Inbox)
			}
			i, groups = len(groups), append(groups, g)
		}
		w.add(groups[i], u)
	}
	for _, g := range groups {
		// In a fixed order, so that equal groups have equal statements.
		slices.SortFunc(g.outs, func(a, b *out) int { return a.compare(b) })
	}
	return groups
}

// fits reports whether u sends to the same queues as the units of g. Without that rule each set of
// queues that a batch happens to have would be a statement of its own.
func (g *group) fits(u *tablequeue.Unit) bool {
	for i := range u.Rows {
		if !slices.ContainsFunc(g.outs, func(o *out) bool { return o.takes(&u.Rows[i]) }) {
			return false
		}
	}
	return !slices.ContainsFunc(g.outs, func(o *out) bool {
		return !slices.ContainsFunc(u.Rows, func(r tablequeue.Row) bool { return o.takes(&r) })
	})
}

// takes reports whether r is a row of o.
func (o *out) takes(r *tablequeue.Row) bool {
	return o.to.name == r.Queue && o.leased == (r.Lease != 0) && o.named == r.Named()
}

// records reports whether u records its key as the units of g do, and another key than theirs: of
// two units with one key the second is executed by a later statement, which finds the key.
func (g *group) records(u *tablequeue.Unit) bool {
	if u.Key == nil || g.inbox == nil {
		return u.Key == nil && g.inbox == nil
	}
	return g.inbox.name == u.Inbox && !slices.ContainsFunc(g.units, func(other *tablequeue.Unit) bool {
		return other.Key.ID == u.Key.ID
	})
}

func (w *writer) add(g *group, u *tablequeue.Unit) {
	g.units = append(g.units, u)
	for i := range u.Rows {
		r := &u.Rows[i]
		o := w.out(g, r)
		o.unit = u
		o.owners = append(o.owners, number(len(g.units)))
		o.rows = append(o.rows, r)
		o.timed = o.timed || r.Timed()
		o.seqs = o.seqs || r.WantSeq
	}
}

func (w *writer) out(g *group, r *tablequeue.Row) *out {
	i := slices.IndexFunc(g.outs, func(o *out) bool { return o.takes(r) })
	if i < 0 {
		to := w.table(r.Queue)
		foreign := to.foreign.Load()
		i, g.outs = len(g.outs), append(g.outs, &out{
			to: to, foreign: foreign, named: r.Named(), timed: foreign || r.Named(), leased: r.Lease != 0,
		})
	}
	return g.outs[i]
}

// compare orders the rows of one table by their kinds: plain ones, named ones, leased ones.
func (o *out) compare(other *out) int {
	kind := func(o *out) int {
		switch {
		case o.leased:
			return 2
		case o.named:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(o.to.name, other.to.name), kind(o)-kind(other))
}

// queue adds g's statements to b.
func (w *writer) queue(b *pgx.Batch, g *group) {
	switch g.verb {
	case tablequeue.Send:
		for _, o := range g.outs {
			w.queueSend(b, o, o.arrays())
		}
	case tablequeue.Record:
		keys, sums := keysOf(g.units)
		args := g.withOuts(keys, sums)
		b.Queue(w.composed(g, false), w.args(args)...).Query(g.recorded)
	case tablequeue.Delete:
		seqs, leases := leasesOf(g.units)
		if g.inbox != nil {
			keys, sums := keysOf(g.units)
			args := g.withOuts(seqs, leases, keys, sums)
			b.Queue(w.composed(g, false), w.args(args)...).Query(g.settledAndRecorded)
			return
		}
		args := g.withOuts(seqs, leases)
		b.Queue(w.composed(g, false), w.args(args)...).Query(g.settled)
	default:
		seqs, leases := leasesOf(g.units)
		after, undo, notes := make(array[number], len(g.units)), make(array[number], len(g.units)), make(array[text], len(g.units))
		for i, u := range g.units {
			after[i], notes[i] = number(u.After.Microseconds()), text(u.Note)
			if u.Verb == tablequeue.Release {
				undo[i] = 1
			}
		}
		b.Queue(g.queue.update, w.args([]any{seqs, leases, after, undo, notes})...).Query(g.settled)
	}
}

// withOuts returns args with the parameters of the rows that g sends.
func (g *group) withOuts(args ...any) []any {
	for _, o := range g.outs {
		o.args = append([]any{o.owners}, o.arrays()...)
		args = append(args, o.args...)
	}
	return args
}

func (w *writer) queueSend(b *pgx.Batch, o *out, arrays []any) {
	key := shape{to: o.to.name, timed: o.timed, named: o.named, foreign: o.foreign, leased: o.leased, seqs: o.seqs, counted: o.counted}
	text := w.statement(key, func() string {
		text := insert(o, 1, false)
		if o.counted {
			return o.countedInsert(text, "cardinality($1)")
		}
		if o.seqs {
			text += " RETURNING seq"
		}
		return text
	})
	q := b.Queue(text, w.args(arrays)...)
	switch {
	case o.leased:
		q.Query(o.insertedLeased)
	case o.seqs:
		q.Query(o.inserted)
	}
}

// shape is the key of a composed statement.
type shape struct {
	from, to, inbox                     string
	timed, named, foreign, leased, seqs bool
	counted, lone, single               bool
}

func (w *writer) statement(key shape, compose func() string) string {
	if text, ok := w.statements.Load(key); ok {
		return text
	}
	return w.statements.Add(key, compose())
}

// kind returns a byte of its own for each form that the insert of o can have.
func (o *out) kind(single bool) (kind byte) {
	for i, has := range [...]bool{o.timed, o.named, o.foreign, o.leased, o.counted, single && o.lone()} {
		if has {
			kind |= 1 << i
		}
	}
	return kind
}

// composed returns the statement that completes or records the units of g; with single, the one
// that completes the unit of a handler's transaction.
func (w *writer) composed(g *group, single bool) string {
	to := make([]byte, 0, 128)
	for _, o := range g.outs {
		to = append(to, o.to.name...)
		to = append(to, 0, o.kind(single))
	}
	key := shape{to: string(to), single: single}
	if g.queue != nil {
		key.from, key.counted = g.queue.name, g.queue.filtered.Load()
	}
	if g.inbox != nil {
		key.inbox = g.inbox.name
	}
	return w.statement(key, func() string {
		switch {
		case single:
			return removal(g.queue, g.inbox, g.outs)
		case g.queue == nil:
			return record(g.inbox, g.outs)
		case g.inbox != nil:
			return completionRecorded(g.queue, g.inbox, g.outs)
		}
		return completion(g.queue, g.outs)
	})
}

// settled marks the units whose row the statement did not hit.
func (g *group) settled(rows pgx.Rows) error {
	for _, u := range g.units {
		u.Lost = true
	}
	return eachNumber(rows, func(n int64) { g.units[n-1].Lost = false })
}

// eachNumber calls row with each number that a statement has returned.
func eachNumber(rows pgx.Rows, row func(n int64)) error {
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&n}, func() error {
		row(n)
		return nil
	})
	return err
}

// inserted tells the rows their seq: it comes in the order in which they were given.
func (o *out) inserted(rows pgx.Rows) error {
	i := 0
	return eachNumber(rows, func(seq int64) {
		if o.rows[i].WantSeq {
			o.rows[i].Seq = seq
		}
		i++
	})
}

// insertedLeased sets the seqs of the rows that were inserted with leases.
func (o *out) insertedLeased(rows pgx.Rows) error {
	var seq, lease int64
	_, err := pgx.ForEachRow(rows, []any{&seq, &lease}, func() error {
		o.leasedAs(lease, seq)
		return nil
	})
	return err
}

// leasedAs sets the seq of the row with that lease.
func (o *out) leasedAs(lease, seq int64) {
	for _, r := range o.rows {
		if r.Lease == lease {
			r.Seq = seq
		}
	}
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
