package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	maxFlushBytes = 16 << 20 // headers and bodies in one Flush, unless one unit alone has more
	conflicts     = 5        // times that a batch is tried after a conflict
	maxTorn       = 2 * 9    // parts of a batch that lose all of these: two of 200 units are found in so many

	// A server that restarts ends all connections, which is noticed when one is used: a batch may
	// meet as many as the pool has.
	reconnects   = 2           // times that a batch is tried again
	maxReconnect = time.Second // after this time it is not
)

// work is a unit in the batcher. Works are pooled, and their slices reused.
type work struct {
	unit   Unit
	buf    []byte              // has the Headers of the unit's rows
	failed []transport.OpError // rows that were refused, by operation
	err    error               // of the unit as a whole

	diverted []*Unit // parts of the unit that the detour is to write
}

const keepBuf = 64 << 10 // a larger buf is not kept in the pool

func (c *Conn) newWork() *work { return c.works.Get().(*work) } //nolint:errcheck // nothing else is in the pool

func (c *Conn) recycle(w *work) {
	if cap(w.buf) > keepBuf {
		w.buf = nil
	}
	clear(w.unit.Rows)
	*w = work{unit: Unit{Rows: w.unit.Rows[:0]}, buf: w.buf[:0]}
	c.works.Put(w)
}

// do executes w in a batch with others. kept is true while the batcher still uses w, which must
// then not be recycled.
func (c *Conn) do(ctx context.Context, w *work) (kept bool, err error) {
	w.unit.of = w
	err = c.units.Do(ctx, w)
	if err == nil && len(w.diverted) > 0 {
		if c.takeDetour(ctx, w) {
			err = batch.ErrAbandoned
		} else {
			err = w.err
		}
	}
	switch {
	case errors.Is(err, batch.ErrClosed):
		return false, transport.ErrClosed
	case errors.Is(err, batch.ErrAbandoned):
		return true, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
	return false, err
}

// write flushes units. When they are refused, it leaves out those that send to a queue that takes
// no messages, or else flushes each half, so that in the end only the refused units fail.
func (f *flushing) write(units []*Unit) {
	c := f.conn
	if f.fault != nil {
		fail(units, f.fault)
		return
	}
	err := c.writeOnce(units, c.store.Flush)
	if err == nil {
		c.wakes.flushed(units)
		return
	}
	class := c.store.Classify(err)
	switch class {
	case Conflict:
		f.torn++
	case Refused, Locked, Impeded:
	case Failed, Unavailable, Unknown:
		fail(units, c.verdict(err))
		return
	}
	if errors.Is(err, ErrNoDelays) {
		kept, why := c.keepAll(units)
		if kept && why == nil {
			f.write(units)
			return
		}
		err = cmp.Or(why, err)
	} else if c.look(err, units) {
		if rest, failed := c.without(units); failed {
			if len(rest) > 0 {
				f.write(rest)
			}
			return
		}
	}
	if class == Locked || class == Impeded {
		if rest, known := f.divertFailed(err, units); known {
			if len(rest) > 0 {
				f.write(rest)
			}
			return
		}
	}
	if f.torn > maxTorn {
		fail(units, c.verdict(err))
		return
	}
	if len(units) == 1 {
		first, second := units[0].halves()
		if second == nil {
			fail(units, c.verdict(err))
			return
		}
		units = []*Unit{first, second}
	}
	half := len(units) / 2
	f.write(units[:half])
	f.write(units[half:])
}

// look finds the queues because of which units were refused.
func (c *Conn) look(err error, units []*Unit) bool {
	ctx, cancel := context.WithTimeout(c.work, maxWait)
	defer cancel()
	return c.find(ctx, err, destinations(units...))
}

// writeOnce writes units by flush: again after a conflict, or on connections that the server had
// ended.
func (c *Conn) writeOnce(units []*Unit, flush func(context.Context, []*Unit) error) error {
	pause := backoff.Backoff{Min: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	began := time.Now()
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.work, maxWait)
		err := flush(ctx, units)
		cancel()
		if err == nil {
			return nil
		}
		forgetResults(units)
		switch c.store.Classify(err) {
		case Conflict:
			if try == conflicts {
				return err
			}
		case Unavailable:
			if try > reconnects || time.Since(began) > maxReconnect {
				return err
			}
		case Failed, Refused, Locked, Impeded, Unknown:
			return err
		}
		_ = pause.Wait(c.work)
	}
}

// forgetResults clears the results of units that were rolled back: the seqs of rows, which are no
// receipts, and lost leases and known keys.
func forgetResults(units []*Unit) {
	for _, u := range units {
		u.Lost, u.Handled = false, false
		for i := range u.Rows {
			u.Rows[i].Seq = 0
		}
	}
}

// verdict returns err with the error of package transport that its class means.
func (c *Conn) verdict(err error) error {
	switch c.store.Classify(err) {
	case Unknown:
		return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
	case Unavailable, Impeded:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict, Locked:
	}
	return err
}

func fail(units []*Unit, err error) {
	for _, u := range units {
		if u.Verb != Send {
			u.of.err = err
			continue
		}
		for i := range u.Rows {
			u.of.failed = append(u.of.failed, transport.OpError{Index: u.Rows[i].Op, Err: err})
		}
	}
}

// divides reports whether parts of u can be written by themselves.
func (u *Unit) divides() bool { return u.Verb == Send && len(u.Rows) > 1 }

// halves splits the rows of a Send, which do not depend on each other. For other units second is
// nil.
func (u *Unit) halves() (first, second *Unit) {
	if !u.divides() {
		return u, nil
	}
	half := len(u.Rows) / 2
	return &Unit{Rows: u.Rows[:half], of: u.of}, &Unit{Rows: u.Rows[half:], of: u.of}
}

func (w *work) size() int { return w.unit.size() }

// size returns the bytes of the headers and bodies of u.
func (u *Unit) size() int {
	n := 0
	for i := range u.Rows {
		n += len(u.Rows[i].Headers) + len(u.Rows[i].Body)
	}
	return n
}
