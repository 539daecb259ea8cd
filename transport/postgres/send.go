package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

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

// longLockWait replaces the bound on waiting for locks, [dialect.LockWait], for the rest of a
// transaction. Transactions of handlers have no bound: see [lockWatch].
const longLockWait = `SELECT set_config('lock_timeout', '1s', true)` // dialect.LongLockWait

// FlushWaiting implements [tablequeue.Locks].
func (w *writer) FlushWaiting(ctx context.Context, units []*tablequeue.Unit) error {
	return w.failed(w.flush(ctx, units, func(b *pgx.Batch) { b.Queue(longLockWait) }), "write")
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

// FailingQueue implements [tablequeue.FaultFinder].
func (w *writer) FailingQueue(ctx context.Context, units []*tablequeue.Unit) string {
	rows := &tablequeue.Unit{Verb: tablequeue.Send}
	for _, u := range units {
		for i := range u.Rows {
			if u.Rows[i].Lease == 0 { // the insert of a leased row has parameters of its unit
				rows.Rows = append(rows.Rows, u.Rows[i])
			}
		}
	}
	tx, err := w.writes.Begin(ctx)
	if err != nil {
		return ""
	}
	defer tx.Rollback(ctx) //nolint:errcheck // a connection that cannot roll back is closed
	b := w.batch(w.writes)
	first := b.Len()
	groups := w.groups([]*tablequeue.Unit{rows})
	for _, g := range groups {
		w.queue(b, g)
	}
	results := tx.SendBatch(ctx, b)
	failed, err := firstFailed(b, results)
	_ = results.Close() // has the same error
	if i := failed - first; err != nil && len(groups) == 1 && i >= 0 && i < len(groups[0].outs) {
		return groups[0].outs[i].to.name
	}
	return ""
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

// renames reports whether u has a row with the name of one of g's: one statement cannot replace a
// row twice.
func (g *group) renames(u *tablequeue.Unit) bool {
	for i := range u.Rows {
		r := &u.Rows[i]
		if r.Named() && slices.ContainsFunc(g.outs, func(o *out) bool { return o.takes(r) && o.has(r.Name) }) {
			return true
		}
	}
	return false
}

// has reports whether a row of o has the name.
func (o *out) has(name [16]byte) bool {
	for _, r := range o.rows[len(o.names):] {
		if o.names == nil {
			o.names = map[[16]byte]struct{}{}
		}
		o.names[r.Name] = struct{}{}
	}
	_, found := o.names[name]
	return found
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

// filtersFor is the time after which a table is looked at again.
const filtersFor = time.Minute

// lookAtFilters finds the filters of the tables that groups insert into, unless they were looked at
// a short time ago. The inserts into a table with filters are counted. A failure of the query is
// one of the next statement too.
func (w *writer) lookAtFilters(ctx context.Context, groups []*group) {
	now := time.Now()
	var tables []*table
	for _, g := range groups {
		for _, o := range g.outs {
			if at := o.to.filtersAt.Load(); now.Sub(time.Unix(0, at)) > filtersFor && o.to.filtersAt.CompareAndSwap(at, now.UnixNano()) {
				tables = append(tables, o.to)
			}
		}
	}
	if len(tables) > 0 {
		names := make([]string, len(tables))
		for i, t := range tables {
			names[i] = t.quoted
		}
		var filtered bool
		i := 0
		rows, _ := w.writes.Query(ctx, `SELECT `+filters(`to_regclass(q.name)`)+` <> '' FROM unnest($1::text[]) WITH ORDINALITY AS q(name, n) ORDER BY q.n`, names)
		_, err := pgx.ForEachRow(rows, []any{&filtered}, func() error {
			tables[i].filtered.Store(filtered)
			i++
			return nil
		})
		for _, t := range tables[i:] {
			t.filtersAt.Store(0)
		}
		if err != nil {
			w.log.DebugContext(ctx, "tables cannot be looked at for triggers", slog.Any("error", err))
		}
	}
	for _, g := range groups {
		for _, o := range g.outs {
			o.counted = o.to.filtered.Load() && !o.named && !o.leased && !o.foreign
		}
	}
}

// refusedByForeign reports whether the server may have refused rows because of a foreign table.
func refusedByForeign(err error) bool {
	return slices.Contains([]string{undefinedColumn, notNullViolation}, code(err))
}

// detectForeign reports whether a queue's table is foreign, which was not known.
func (w *writer) detectForeign(ctx context.Context, queue string, _ error) bool {
	t := w.table(queue)
	foreign := errors.Is(unfit(ctx, w.writes, t), dialect.ErrForeign)
	return foreign && t.foreign.CompareAndSwap(false, true)
}

// noConflictIndex is the SQLSTATE with which a table without the unique index on name refuses a
// named row.
const noConflictIndex = "42P10"

// timerless adds [tablequeue.ErrNoTimers] to the error of units with named rows for a table that
// lacks what they need.
func timerless(err error, units ...*tablequeue.Unit) error {
	if c := code(err); c != undefinedColumn && c != noConflictIndex || errors.Is(err, errWrites) {
		return err
	}
	for _, u := range units {
		for i := range u.Rows {
			if u.Rows[i].Named() {
				return fmt.Errorf("queue %q: %w: %w", u.Rows[i].Queue, tablequeue.ErrNoTimers, err)
			}
		}
	}
	return err
}
