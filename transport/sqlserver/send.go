package sqlserver

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// writer is the part of a store that executes units.
type writer struct{ *db }

// Flush implements [tablequeue.Queues]. A single statement needs no transaction, unless a trigger
// may skip some of its rows.
func (w *writer) Flush(ctx context.Context, units []*tablequeue.Unit) error {
	return w.flush(ctx, units, lockWait)
}

// FlushWaiting implements [tablequeue.Locks].
func (w *writer) FlushWaiting(ctx context.Context, units []*tablequeue.Unit) error {
	return w.flush(ctx, units, longLockWait)
}

func (w *writer) flush(ctx context.Context, units []*tablequeue.Unit, wait string) error {
	err := w.detector.Repeat(ctx, units, func() error {
		if len(recordings(units))+len(settlings(units))+len(outgoings(units)) > 1 || named(units) || w.triggered(units) {
			return w.inTx(ctx, func(tx *sql.Tx) error { return w.write(ctx, waiting{tx, wait}, units) })
		}
		return w.write(ctx, waiting{w.engine, wait}, units)
	})
	return failed(err, "write")
}

// triggered reports whether rows of units are inserted into a table with triggers.
func (w *writer) triggered(units []*tablequeue.Unit) bool {
	return slices.ContainsFunc(units, func(u *tablequeue.Unit) bool {
		return slices.ContainsFunc(u.Rows, func(r tablequeue.Row) bool { return w.table(r.Queue).traits.triggers })
	})
}

// errSkipped is the error of an insert, perhaps of some of its rows. Only a table with triggers has
// it, whose inserts are rolled back.
var errSkipped = errors.New("a trigger of the table has skipped a row")

// Texts before the statements that write, which set the wait for a lock. The pool resets it before
// the connection's next use.
const (
	lockWait     = "SET LOCK_TIMEOUT " + dialect.LockWait + ";\n"
	longLockWait = "SET LOCK_TIMEOUT 1000;\n" // dialect.LongLockWait
	anyLockWait  = "SET LOCK_TIMEOUT -1;\n"
	noLockWait   = "SET LOCK_TIMEOUT 0;\n"
)

// waiting executes statements with a text before each.
type waiting struct {
	on
	text string
}

func (w waiting) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return w.on.QueryContext(ctx, w.text+query, args...)
}

func (w waiting) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return w.on.ExecContext(ctx, w.text+query, args...)
}

// write settles the leased rows of units, records the keys of those that it has hit, and then
// inserts the rows that were sent with them.
func (w *writer) write(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, u := range units {
		u.Lost, u.Handled = false, false // an attempt before may have set them
	}
	for _, r := range recordings(units) {
		if err := w.complete(ctx, o, r); err != nil {
			return err
		}
	}
	keyless := slices.DeleteFunc(slices.Clone(units), func(u *tablequeue.Unit) bool { return u.Key != nil })
	if err := w.settleAll(ctx, o, keyless); err != nil {
		return err
	}
	return w.insert(ctx, o, executed(units))
}

// executed returns units without those whose lease is lost or whose key is known.
func executed(units []*tablequeue.Unit) []*tablequeue.Unit {
	return slices.DeleteFunc(slices.Clone(units), skipped)
}

func skipped(u *tablequeue.Unit) bool { return u.Lost || u.Handled }

// Numbers by which the server refuses a second row with one key.
const (
	duplicateKey   = 2627
	duplicateIndex = 2601
)

// errRival means that another transaction has recorded a key meanwhile. Repeated, the statement
// finds that key.
var errRival = errors.New("the message is handled at the same time elsewhere")

// recording is the units that one statement records, each with another key. A unit with the key of
// another is of a later recording, which finds that key unless the lease of the other was lost.
type recording struct {
	inbox string
	units []*tablequeue.Unit
}

func recordings(units []*tablequeue.Unit) (all []*recording) {
	for _, u := range units {
		if u.Key == nil {
			continue
		}
		i := slices.IndexFunc(all, func(r *recording) bool { return r.inbox == u.Inbox && r.of(u.Key.ID[:]) == nil })
		if i < 0 {
			i, all = len(all), append(all, &recording{inbox: u.Inbox})
		}
		all[i].units = append(all[i].units, u)
	}
	return all
}

// of returns the unit with the key id, or nil.
func (r *recording) of(id []byte) *tablequeue.Unit {
	for _, u := range r.units {
		if bytes.Equal(u.Key.ID[:], id) {
			return u
		}
	}
	return nil
}

// complete records the keys of r, settles the rows of the units whose key is new, and removes the
// keys of those whose lease is lost.
func (w *writer) complete(ctx context.Context, o on, r *recording) error {
	if err := w.record(ctx, o, r); err != nil {
		return fmt.Errorf("record in inbox %q: %w", r.inbox, err)
	}
	if err := w.settleAll(ctx, o, executed(r.units)); err != nil {
		return err
	}
	if err := w.unrecord(ctx, o, r); err != nil {
		return fmt.Errorf("remove ids again from inbox %q: %w", r.inbox, err)
	}
	return nil
}

// record records the keys of r, and marks the units whose key is known.
func (w *writer) record(ctx context.Context, o on, r *recording) error {
	keys := make([]transport.HandledKey, len(r.units))
	for i, u := range r.units {
		keys[i], u.Handled = *u.Key, true
	}
	err := each(ctx, o, func(rows *sql.Rows) error {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return err
		}
		u := r.of(id)
		if u == nil {
			return fmt.Errorf("the key %x was recorded, which is none of the batch", id)
		}
		u.Handled = false
		return nil
	}, w.inbox(r.inbox).record, keyed(keys))
	if n := numberOf(err); n == duplicateKey || n == duplicateIndex {
		err = fmt.Errorf("%w: %w", errRival, err)
	}
	return err
}

// unrecord removes the keys of those units whose lease is lost.
func (w *writer) unrecord(ctx context.Context, o on, r *recording) error {
	var keys []transport.HandledKey
	for _, u := range r.units {
		if u.Lost {
			keys = append(keys, *u.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	n, err := changed(ctx, o, w.inbox(r.inbox).forgetKeys, keyed(keys))
	if err == nil && n != int64(len(keys)) {
		err = fmt.Errorf("%d of %d keys were removed again", n, len(keys))
	}
	return err
}

// settleAll settles the leased rows of units.
func (w *writer) settleAll(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, g := range settlings(units) {
		if err := w.settle(ctx, o, g); err != nil {
			return fmt.Errorf("settle in queue %q: %w", g.queue, err)
		}
	}
	return nil
}

// settling is the units that one statement settles.
type settling struct {
	queue  string
	remove bool
	units  []*tablequeue.Unit
}

func settlings(units []*tablequeue.Unit) (all []*settling) {
	for _, u := range units {
		if u.Verb == tablequeue.Send || u.Verb == tablequeue.Record {
			continue
		}
		remove := u.Verb == tablequeue.Delete
		i := slices.IndexFunc(all, func(g *settling) bool { return g.queue == u.Queue && g.remove == remove })
		if i < 0 {
			i, all = len(all), append(all, &settling{queue: u.Queue, remove: remove})
		}
		all[i].units = append(all[i].units, u)
	}
	return all
}

func (w *writer) settle(ctx context.Context, o on, g *settling) error {
	named := make([][]any, len(g.units))
	for i, u := range g.units {
		u.Lost = true
		named[i] = []any{i, u.Lease.Seq, u.Lease.ID}
		if g.remove {
			continue
		}
		undo := 0
		if u.Verb == tablequeue.Release {
			undo = 1
		}
		named[i] = append(named[i], u.After.Microseconds(), undo)
		if u.Note != "" {
			named[i] = append(named[i], u.Note)
		}
	}
	statement := w.table(g.queue).update
	if g.remove {
		statement = w.table(g.queue).remove
	}
	return each(ctx, o, hits(func(i int) { g.units[i].Lost = false }), statement, list("rows", named))
}

// outgoing is the rows without names that are inserted into one queue, in order.
type outgoing struct {
	queue string
	rows  []*tablequeue.Row
}

func outgoings(units []*tablequeue.Unit) (all []*outgoing) {
	for _, u := range units {
		for i := range u.Rows {
			row := &u.Rows[i]
			if row.Named() {
				continue
			}
			at := slices.IndexFunc(all, func(o *outgoing) bool { return o.queue == row.Queue })
			if at < 0 {
				at, all = len(all), append(all, &outgoing{queue: row.Queue})
			}
			all[at].rows = append(all[at].rows, row)
		}
	}
	return all
}

func (w *writer) insert(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, out := range outgoings(units) {
		if err := w.insertRows(ctx, o, out, w.table(out.queue).insert); err != nil {
			return fmt.Errorf("insert into queue %q: %w", out.queue, err)
		}
	}
	return w.replace(ctx, o, units)
}

// insertRows inserts rows and sets their Seq. The server returns the identities, which are in the
// order of the rows, in any order.
func (w *writer) insertRows(ctx context.Context, o on, out *outgoing, statement string) error {
	rows, bodies := encodeRows(out.rows)
	args := []any{list("rows", rows), sql.Named("bodies", bodies)}
	if w.table(out.queue).traits.foreign {
		_, err := o.ExecContext(ctx, statement, args...)
		return err
	}
	var seqs []int64
	if err := each(ctx, o, values(&seqs), statement, args...); err != nil {
		return err
	}
	if len(seqs) != len(out.rows) {
		return fmt.Errorf("%d of %d rows were inserted: %w", len(seqs), len(out.rows), errSkipped)
	}
	slices.Sort(seqs)
	for i, row := range out.rows {
		if row.WantSeq {
			row.Seq = seqs[i]
		}
	}
	return nil
}

// named reports whether units have rows with names.
func named(units []*tablequeue.Unit) bool {
	return slices.ContainsFunc(units, func(u *tablequeue.Unit) bool {
		for i := range u.Rows {
			if u.Rows[i].Named() {
				return true
			}
		}
		return false
	})
}

// replacement is the rows with names that a transaction leaves in a queue, in the order of the
// names: of the rows with one name the last.
type replacement struct {
	queue string
	rows  []*tablequeue.Row
}

func replacements(units []*tablequeue.Unit) (all []*replacement) {
	for _, u := range units {
		for i := range u.Rows {
			row := &u.Rows[i]
			if !row.Named() {
				continue
			}
			at := slices.IndexFunc(all, func(r *replacement) bool { return r.queue == row.Queue })
			if at < 0 {
				at, all = len(all), append(all, &replacement{queue: row.Queue})
			}
			all[at].rows = append(all[at].rows, row)
		}
	}
	for _, r := range all {
		slices.SortStableFunc(r.rows, func(a, b *tablequeue.Row) int { return bytes.Compare(a.Name[:], b.Name[:]) })
		last := r.rows[:0]
		for i, row := range r.rows {
			if i+1 == len(r.rows) || r.rows[i+1].Name != row.Name {
				last = append(last, row)
			}
		}
		r.rows = last
	}
	return all
}

// errNamedTwice means that another transaction has inserted a row with the same name meanwhile.
// Repeated, the statements replace that row.
var errNamedTwice = errors.New("another transaction sets the same name")

// replace deletes the rows with the names of those of units, and inserts these.
func (w *writer) replace(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, r := range replacements(units) {
		names := make([]string, len(r.rows))
		for i, row := range r.rows {
			names[i] = uuid.Text(row.Name)
		}
		_, err := o.ExecContext(ctx, w.table(r.queue).vacate, list("names", names))
		r.rows = slices.DeleteFunc(r.rows, func(row *tablequeue.Row) bool { return row.Removes })
		if err == nil && len(r.rows) > 0 {
			err = w.insertRows(ctx, o, &outgoing{queue: r.queue, rows: r.rows}, w.table(r.queue).insertNamed)
		}
		switch numberOf(err) {
		case duplicateKey, duplicateIndex:
			err = fmt.Errorf("%w: %w", errNamedTwice, err)
		case invalidColumn, missingIndex:
			err = fmt.Errorf("%w: %w", tablequeue.ErrNoTimers, err)
		}
		if err != nil {
			return fmt.Errorf("replace in queue %q: %w", r.queue, err)
		}
	}
	return nil
}

// jsonRow is an element of rowList. Its body is the BodySize bytes of @bodies from BodyFrom on,
// which counts from 1.
type jsonRow struct {
	N        int             `json:"n"`
	Headers  json.RawMessage `json:"headers"`
	BodyFrom int             `json:"body_from"`
	BodySize int             `json:"body_size"`
	At       int64           `json:"at_us"`
	After    int64           `json:"after_us"`
	TTL      int64           `json:"ttl_us"`
	Name     string          `json:"name,omitempty"`
}

func encodeRows(rows []*tablequeue.Row) (encoded []jsonRow, bodies []byte) {
	encoded = make([]jsonRow, len(rows))
	for i, r := range rows {
		e := jsonRow{
			N: i, Headers: r.Headers, BodyFrom: len(bodies) + 1, BodySize: len(r.Body),
			After: r.After.Microseconds(), TTL: r.TTL.Microseconds(),
		}
		if !r.At.IsZero() {
			e.At = max(1, r.At.UnixMicro())
		}
		if r.Named() {
			e.Name = uuid.Text(r.Name)
		}
		encoded[i] = e
		bodies = append(bodies, r.Body...)
	}
	return encoded, padded(bodies)
}

// padded pads b to one of a few lengths. Up to 8,000 bytes the length is part of a parameter's
// type, and the server makes a plan for each type.
func padded(b []byte) []byte {
	const unlimited = 8001
	size := 512
	for size < len(b) {
		size *= 2
	}
	if size > unlimited {
		size = max(unlimited, len(b))
	}
	return append(b, make([]byte, size-len(b))...)
}
