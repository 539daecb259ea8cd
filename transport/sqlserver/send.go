package sqlserver

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/uuid"
)

// Flush implements [tablequeue.Queues]. A single statement needs no transaction, unless a trigger
// may skip some of its rows.
func (s *store) Flush(ctx context.Context, units []*tablequeue.Unit) error {
	return s.flush(ctx, units, lockWait)
}

func (s *store) flush(ctx context.Context, units []*tablequeue.Unit, wait string) error {
	err := s.detector.Repeat(ctx, units, func() error {
		if len(recordings(units))+len(settlings(units))+len(outgoings(units)) > 1 || named(units) || s.triggered(units) {
			return s.inTx(ctx, func(tx *sql.Tx) error { return s.write(ctx, waiting{tx, wait}, units) })
		}
		return s.write(ctx, waiting{s.db, wait}, units)
	})
	return failed(err, "write")
}

// triggered reports whether rows of units are inserted into a table with triggers.
func (s *store) triggered(units []*tablequeue.Unit) bool {
	return slices.ContainsFunc(units, func(u *tablequeue.Unit) bool {
		return slices.ContainsFunc(u.Rows, func(r tablequeue.Row) bool { return s.table(r.Queue).traits.triggers })
	})
}

// errSkipped is the error of an insert, perhaps of some of its rows. Only a table with triggers has
// it, whose inserts are rolled back.
var errSkipped = errors.New("a trigger of the table has skipped a row")

// inTx calls do in a transaction, which it commits when do returns nil.
func (s *store) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return undoneError{err}
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback()
		return undoneError{err}
	}
	return tx.Commit()
}

// write settles the leased rows of units, records the keys of those that it has hit, and then
// inserts the rows that were sent with them.
func (s *store) write(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, u := range units {
		u.Lost, u.Handled = false, false // an attempt before may have set them
	}
	for _, r := range recordings(units) {
		if err := s.complete(ctx, o, r); err != nil {
			return err
		}
	}
	keyless := slices.DeleteFunc(slices.Clone(units), func(u *tablequeue.Unit) bool { return u.Key != nil })
	if err := s.settleAll(ctx, o, keyless); err != nil {
		return err
	}
	return s.insert(ctx, o, executed(units))
}

// executed returns units without those whose lease is lost or whose key is known.
func executed(units []*tablequeue.Unit) []*tablequeue.Unit {
	return slices.DeleteFunc(slices.Clone(units), skipped)
}

func skipped(u *tablequeue.Unit) bool { return u.Lost || u.Handled }

// settleAll settles the leased rows of units.
func (s *store) settleAll(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, g := range settlings(units) {
		if err := s.settle(ctx, o, g); err != nil {
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

func (s *store) settle(ctx context.Context, o on, g *settling) error {
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
	statement := s.table(g.queue).update
	if g.remove {
		statement = s.table(g.queue).remove
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

func (s *store) insert(ctx context.Context, o on, units []*tablequeue.Unit) error {
	for _, out := range outgoings(units) {
		if err := s.insertRows(ctx, o, out, s.table(out.queue).insert); err != nil {
			return fmt.Errorf("insert into queue %q: %w", out.queue, err)
		}
	}
	return s.replace(ctx, o, units)
}

// insertRows inserts rows and sets their Seq. The server returns the identities, which are in the
// order of the rows, in any order.
func (s *store) insertRows(ctx context.Context, o on, out *outgoing, statement string) error {
	rows, bodies := encodeRows(out.rows)
	args := []any{list("rows", rows), sql.Named("bodies", bodies)}
	if s.table(out.queue).traits.foreign {
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
