package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// detourWait is the time between two probes of an impeded queue.
const detourWait = time.Second

// flushing is one batch of the batcher.
//
// A fault may concern the rows for one queue only: a trigger of its table waits for a row that
// another transaction has locked, or the disk of its tablespace is full. A batch with such a row
// waits or fails as a whole. So flushing diverts the units for the queue to the detour, and writes
// the others at once.
//
// When a second statement fails because of a full disk or the like, the database itself is at
// fault: then the batch fails.
type flushing struct {
	conn     *Conn
	diverted []*Unit
	torn     int   // parts of the batch that have lost a conflict at each try
	impeded  bool  // the units of one statement were diverted because of an error of class Impeded
	fault    error // of the database: no unit is written any more
}

// flush writes a batch of works.
func (c *Conn) flush(works []*work, errs []error) {
	units := make([]*Unit, len(works))
	for i, w := range works {
		units[i] = &w.unit
	}
	f := flushing{conn: c}
	if c.unusable.known.Load() > 0 {
		units = f.divert(units, c.unusable.diverts)
	}
	if len(units) > 0 {
		f.write(units)
	}
	if f.fault != nil {
		fail(f.diverted, f.fault)
		f.diverted = nil
	}
	for _, u := range f.diverted {
		u.of.diverted = append(u.of.diverted, u)
	}
	for i, w := range works {
		errs[i] = w.err
	}
}

// divert diverts the rows of Sends, and the other units, for queues of which belongs returns true.
// It returns the rest.
func (f *flushing) divert(units []*Unit, belongs func(queue string) bool) (rest []*Unit) {
	for _, u := range units {
		kept, diverted := u.split(belongs)
		rest, f.diverted = append(rest, kept...), append(f.diverted, diverted...)
	}
	return rest
}

// divertFailed diverts the units of the statement that has failed with err, and returns the rest.
// It reports whether the statement is known. A statement with rows for one queue is known to fail
// because of that queue.
func (f *flushing) divertFailed(err error, units []*Unit) (rest []*Unit, known bool) {
	failed, known := errors.AsType[*StatementError](err)
	switch {
	case known:
	case len(units) == 1 && !units[0].divides():
		failed = &StatementError{Units: units}
	default:
		return units, false
	}
	class := f.conn.store.Classify(err)
	if class == Impeded {
		if f.impeded {
			f.fault = f.conn.verdict(err)
			return units, true
		}
		f.impeded = true
	}
	queues := destinations(failed.Units...)
	if failed.Queue != "" {
		queues = []string{failed.Queue}
	}
	if len(queues) == 1 {
		f.conn.unusable.suspect(queues[0], class)
		return f.divert(units, func(queue string) bool { return queue == queues[0] }), true
	}
	of := make(map[*Unit]bool, len(failed.Units))
	for _, u := range failed.Units {
		of[u] = true
	}
	for _, u := range units {
		if of[u] {
			f.diverted = append(f.diverted, u)
		} else {
			rest = append(rest, u)
		}
	}
	return rest, true
}

// takeDetour writes the units of w that were diverted. kept is true while the batcher of the detour
// still uses w, whose results then must not be touched.
func (c *Conn) takeDetour(ctx context.Context, w *work) (kept bool) {
	errs := c.detour.DoAll(ctx, w.diverted)
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, batch.ErrAbandoned) }) {
		return true
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, batch.ErrClosed):
			fail(w.diverted[i:i+1], transport.ErrClosed)
		default: // the unit was withdrawn
			fail(w.diverted[i:i+1], err)
		}
	}
	return false
}

// flushDetour writes diverted units, in one batch for each set of destinations. The results are
// those of the units' works.
func (c *Conn) flushDetour(units []*Unit, _ []error) {
	var order []string
	groups := map[string][]*Unit{}
	for _, u := range units {
		key := strings.Join(destinations(u), "\x00")
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], u)
	}
	for _, key := range order {
		c.writeDetour(groups[key])
	}
}

// detourFails is the number of failed writes of units with the same destinations. Each may wait for
// a lock for a second. One of 200 units that cannot be written is found in as many.
const detourFails = 9

// writeDetour writes units with the same destinations. Each of them fails with a
// [*transport.BusyError] while a lock or the like keeps them from being written.
func (c *Conn) writeDetour(units []*Unit) {
	fails := 0
	c.writeParts(units, &fails)
}

// writeParts writes units, or each half of them if one of them may be the cause of an error. fails
// counts the errors.
func (c *Conn) writeParts(units []*Unit, fails *int) {
	queues := destinations(units...)
	for _, q := range queues {
		if err := c.unusable.failedJustNow(q); err != nil {
			fail(units, err)
			return
		}
	}
	err := c.writeWaiting(units)
	if err == nil {
		c.wakes.flushed(units)
		c.unimpede(queues)
		return
	}
	class, queue := c.store.Classify(err), ""
	impeded := class == Locked || class == Impeded
	if impeded {
		queue = c.failingQueue(units)
		*fails++
	}
	switch {
	case len(units) > 1 && (class == Refused || impeded && queue == "" && *fails < detourFails):
		half := len(units) / 2
		c.writeParts(units[:half], fails)
		c.writeParts(units[half:], fails)
	case impeded:
		fail(units, c.impede(err, units, queue))
	default:
		fail(units, c.verdict(err))
	}
}

// writeWaiting writes units, and waits for locks for longer than a batch does.
func (c *Conn) writeWaiting(units []*Unit) error {
	if locks, ok := c.store.(Locks); ok {
		return c.writeOnce(units, locks.FlushWaiting)
	}
	return c.writeOnce(units, c.store.Flush)
}

// impede refuses operations for queue, the one from [Conn.failingQueue] because of which units
// failed with err, until a probe of the queue succeeds. When another queue is impeded because of a
// full disk or the like, the database itself is at fault, and no queue is refused. impede returns
// the error of the units.
func (c *Conn) impede(err error, units []*Unit, queue string) error {
	class, reason := c.store.Classify(err), rowLockAdvice
	if class == Impeded {
		reason = fmt.Sprintf("the database cannot write to its table: %.300v", err)
	}
	if queue == "" { // the cause is the row that a unit settles, or no longer there
		return &transport.BusyError{Queue: units[0].somewhere(), Reason: reason}
	}
	if others := c.unusable.impededBeside(queue); class == Impeded && len(others) > 0 {
		c.unimpede(append(others, queue))
		return c.verdict(err)
	}
	if c.unusable.impede(queue, class, reason) {
		c.refuses(queue, reason)
	}
	return &transport.BusyError{Queue: queue, Reason: reason}
}

// failingQueue returns the destination of units at whose rows a write fails. A single destination
// is the cause if the units settle no rows, and if the store cannot tell.
func (c *Conn) failingQueue(units []*Unit) string {
	queues := destinations(units...)
	finder, ok := c.store.(FaultFinder)
	switch {
	case len(queues) == 1 && (!ok || !slices.ContainsFunc(units, (*Unit).settles)):
		return queues[0]
	case !ok || len(queues) == 0:
		return ""
	}
	ctx, cancel := context.WithTimeout(c.work, maxWait)
	defer cancel()
	return finder.FailingQueue(ctx, units)
}

// settles reports whether u changes a row that exists: another transaction may have locked that
// row.
func (u *Unit) settles() bool { return u.Verb != Send && u.Verb != Record }

// somewhere returns a queue by which an error can name u: that of the settled row, or a
// destination.
func (u *Unit) somewhere() string {
	if u.settles() || len(u.Rows) == 0 {
		return u.Queue
	}
	return u.Rows[0].Queue
}

// unimpede ends the refusal of operations for queues. The senders of a batch do not wait until the
// postponed rows are visible.
func (c *Conn) unimpede(queues []string) {
	for _, q := range queues {
		if !c.unusable.diverts(q) {
			continue
		}
		if p := c.unlock(q); p != nil {
			c.running.Go(func() { c.hastenAll(p) })
		}
	}
}
