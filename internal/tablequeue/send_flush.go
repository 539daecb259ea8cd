package tablequeue

import (
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

	// A server that restarts ends all connections, which is noticed when one is used: a batch may meet as many as the
	// pool has.
	reconnects   = 2           // times that a batch is tried again
	maxReconnect = time.Second // after this time it is not
)

// work is a unit on its way through the batcher. Works are pooled: their slices are
// used again.
type work struct {
	unit   Unit
	buf    []byte              // what Headers of the unit's rows point into
	failed []transport.OpError // rows that were refused, by operation
	err    error               // of the unit as a whole
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

// do carries out w together with others. kept is true when the batcher still uses
// w, which must then not be recycled.
func (c *Conn) do(ctx context.Context, w *work) (kept bool, err error) {
	w.unit.of = w
	err = c.units.Do(ctx, w)
	switch {
	case errors.Is(err, batch.ErrClosed):
		return false, transport.ErrClosed
	case errors.Is(err, batch.ErrAbandoned):
		return true, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.Cause(ctx))
	}
	return false, err
}

// flush writes a batch of works.
func (c *Conn) flush(works []*work, errs []error) {
	units := make([]*Unit, len(works))
	for i, w := range works {
		units[i] = &w.unit
	}
	c.write(units)
	for i, w := range works {
		errs[i] = w.err
	}
}

// write flushes units. Where they are refused, it leaves out those that send to a queue which takes no messages, or else
// flushes halves of them, so that in the end only the refused ones fail.
func (c *Conn) write(units []*Unit) {
	err := c.writeOnce(units)
	if err == nil {
		c.wakes.flushed(units)
		return
	}
	if class := c.store.Classify(err); class != Refused && class != Locked {
		fail(units, c.verdict(err))
		return
	}
	if c.look(err, units) {
		if rest, failed := c.without(units); failed {
			if len(rest) > 0 {
				c.write(rest)
			}
			return
		}
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
	c.write(units[:half])
	c.write(units[half:])
}

// look finds the queues that units were refused for.
func (c *Conn) look(err error, units []*Unit) bool {
	ctx, cancel := context.WithTimeout(c.work, maxWait)
	defer cancel()
	return c.find(ctx, err, destinations(units))
}

// writeOnce flushes units: again when they met a conflict, or connections that the server had ended, and with more
// patience when they met a lock on something else than the tables that they send to.
func (c *Conn) writeOnce(units []*Unit) error {
	pause := backoff.Backoff{Min: 2 * time.Millisecond, Max: 50 * time.Millisecond}
	flush, began := c.store.Flush, time.Now()
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(c.work, maxWait)
		err := flush(ctx, units)
		cancel()
		if err == nil {
			return nil
		}
		forgetSeqs(units)
		switch c.store.Classify(err) {
		case Conflict:
			if try == conflicts {
				return err
			}
		case Unavailable:
			if try > reconnects || time.Since(began) > maxReconnect {
				return err
			}
		case Locked:
			locks, ok := c.store.(Locks)
			if !ok || try == conflicts || c.look(err, units) {
				return err
			}
			flush = locks.FlushWaiting
		case Failed, Refused, Unknown:
			return err
		}
		_ = pause.Wait(c.work)
	}
}

// forgetSeqs clears the seqs of rows whose insertion was rolled back, so that they have no receipts.
func forgetSeqs(units []*Unit) {
	for _, u := range units {
		for i := range u.Rows {
			u.Rows[i].Seq = 0
		}
	}
}

// verdict is err as the endpoint is to see it.
func (c *Conn) verdict(err error) error {
	switch c.store.Classify(err) {
	case Unknown:
		return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
	case Unavailable:
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

// halves splits the rows of a Send, which do not depend on each other. Anything else is
// indivisible: second is nil.
func (u *Unit) halves() (first, second *Unit) {
	if u.Verb != Send || len(u.Rows) < 2 {
		return u, nil
	}
	half := len(u.Rows) / 2
	return &Unit{Rows: u.Rows[:half], of: u.of}, &Unit{Rows: u.Rows[half:], of: u.of}
}

func (w *work) size() int {
	n := 0
	for i := range w.unit.Rows {
		n += len(w.unit.Rows[i].Headers) + len(w.unit.Rows[i].Body)
	}
	return n
}
