package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	missingAge = time.Second            // for which a queue that was not found is taken for missing
	maxMissing = 1000                   // names that are remembered as missing
	lockPoll   = 250 * time.Millisecond // between two polls of locked queues
)

// unusable remembers the queues that take no messages. Operations for them are refused before they
// fail a batch with the operations of others.
type unusable struct {
	known atomic.Int64 // entries of missing and locked; while it is 0, of takes no lock

	mu       sync.Mutex           // guards the rest
	missing  map[string]time.Time // until when
	locked   map[string]*postponed
	watching bool // a goroutine looks for the end of the locks
}

// of returns the reason why queue takes no messages, or nil.
func (u *unusable) of(queue string) error {
	if u.known.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p := u.locked[queue]; p != nil && !p.admits() {
		return &transport.BusyError{Queue: queue, Reason: p.reason}
	}
	until, missing := u.missing[queue]
	switch {
	case !missing:
		return nil
	case time.Now().After(until):
		delete(u.missing, queue)
		u.count()
		return nil
	}
	return fmt.Errorf("queue %q: %w", queue, transport.ErrNoQueue)
}

// count updates known after a change. mu is held.
func (u *unusable) count() { u.known.Store(int64(len(u.missing) + len(u.locked))) }

// miss notes that queue does not exist.
func (u *unusable) miss(queue string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if len(u.missing) >= maxMissing {
		maps.DeleteFunc(u.missing, func(_ string, until time.Time) bool { return now.After(until) })
	}
	if u.missing == nil || len(u.missing) >= maxMissing {
		u.missing = map[string]time.Time{}
	}
	u.missing[queue] = now.Add(missingAge)
	u.count()
}

// found forgets the queues that were missing: this process has created some.
func (u *unusable) found() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.missing)
	u.count()
}

// lock notes that the table of queue is locked, and reports whether that is new.
func (u *unusable) lock(queue string) (isNew bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.add(queue, Locked)
	isNew = p.obstacle == suspected
	p.obstacle, p.reason = tableLocked, lockAdvice
	return isNew
}

// suspect notes that units for queue are to take the detour, after an error of that class.
func (u *unusable) suspect(queue string, class Class) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(queue, class)
}

// impede notes that rows for queue cannot be written for that reason, until a probe succeeds. It
// reports whether that is new.
func (u *unusable) impede(queue string, class Class, reason string) (isNew bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.add(queue, class)
	if p.obstacle == tableLocked {
		return false
	}
	isNew = p.obstacle == suspected
	now := time.Now()
	p.obstacle, p.class, p.reason, p.failed, p.probe = impeded, class, reason, now, now.Add(detourWait)
	return isNew
}

// diverts reports whether units for queue take the detour.
func (u *unusable) diverts(queue string) bool {
	if u.known.Load() == 0 {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.locked[queue]
	return p != nil && p.obstacle != tableLocked
}

// impededBeside returns the queues other than queue to which rows cannot be written because of
// errors of class Impeded.
func (u *unusable) impededBeside(queue string) (others []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for other, p := range u.locked {
		if other != queue && p.class == Impeded && p.obstacle == impeded {
			others = append(others, other)
		}
	}
	return others
}

// failedJustNow returns the reason why a write for queue by itself would fail: another failed
// within the last second. A probe is later.
func (u *unusable) failedJustNow(queue string) error {
	if u.known.Load() == 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p := u.locked[queue]; p != nil && p.obstacle == impeded && time.Since(p.failed) < detourWait {
		return &transport.BusyError{Queue: queue, Reason: p.reason}
	}
	return nil
}

// add returns the entry of queue, which is a suspected one if it is new. mu is held.
func (u *unusable) add(queue string, class Class) *postponed {
	p := u.locked[queue]
	if p != nil {
		return p
	}
	if u.locked == nil {
		u.locked = map[string]*postponed{}
	}
	p = &postponed{obstacle: suspected, class: class, since: time.Now(), rows: map[string]map[int64]struct{}{}}
	u.locked[queue] = p
	u.count()
	return p
}

// watch reports whether a watcher is to be started.
func (u *unusable) watch() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	first := !u.watching
	u.watching = true
	return first
}

// unlock forgets the lock and returns the rows that waited for its end.
func (u *unusable) unlock(queue string) *postponed {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.locked[queue]
	delete(u.locked, queue)
	u.count()
	return p
}

// watched returns the queues whose tables are locked, and reports whether any queue takes no
// messages. Without any the watcher has to end: the next one starts another.
func (u *unusable) watched() (locked []string, watching bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.watching = false
	for queue, p := range u.locked {
		u.watching = u.watching || p.obstacle != suspected
		if p.obstacle == tableLocked {
			locked = append(locked, queue)
		}
	}
	slices.Sort(locked)
	return locked, u.watching
}

// probes returns a row for each queue that is due for a probe. It forgets queues that have had no
// probe for long, because nothing is sent to them.
func (u *unusable) probes() (rows []waitingRow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for queue, p := range u.locked {
		if row, ok := p.next(); ok {
			rows = append(rows, row)
		} else if p.obstacle == impeded && p.n == 0 && time.Since(p.failed) > forgetAfter {
			delete(u.locked, queue)
			u.count()
		}
	}
	return rows
}

// warnings returns a text about each queue that takes no messages.
func (u *unusable) warnings() (all []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for queue, p := range u.locked {
		if p.obstacle == suspected {
			continue
		}
		all = append(all, fmt.Sprintf("queue %q takes no messages since %v: %s", queue, p.since.UTC().Format(time.RFC3339), p.reason))
	}
	slices.Sort(all)
	return all
}

// find remembers the missing or locked queues because of which a batch failed with err, and reports
// whether there are any.
func (c *Conn) find(ctx context.Context, err error, queues []string) (found bool) {
	var unusable []bool
	note := func(queue string) {
		c.unusable.miss(queue)
		c.forwards.gone(queue)
	}
	locks, _ := c.store.(Locks)
	switch class := c.store.Classify(err); {
	case class == Locked && locks != nil && len(queues) > 0:
		unusable, err = locks.Locked(ctx, queues)
		note = c.lock
	case class == Refused && errors.Is(err, transport.ErrNoQueue):
		unusable, err = c.store.Missing(ctx, queues)
	}
	for i, q := range queues {
		if err == nil && unusable[i] {
			note(q)
			found = true
		}
	}
	return found
}

// without fails the rows for queues that take no messages, and returns the rest of units. It
// reports whether it has failed any.
func (c *Conn) without(units []*Unit) (rest []*Unit, failed bool) {
	reasons := map[string]error{}
	for _, q := range destinations(units...) {
		if err := c.unusable.of(q); err != nil {
			reasons[q] = err
		}
	}
	if len(reasons) == 0 {
		return units, false
	}
	for _, u := range units {
		kept, refused := u.split(func(queue string) bool { return reasons[queue] != nil })
		rest = append(rest, kept...)
		for _, part := range refused {
			part.refuse(reasons)
		}
	}
	return rest, true
}

// refuse fails the rows of u for queues in reasons.
func (u *Unit) refuse(reasons map[string]error) {
	for i := range u.Rows {
		if err := reasons[u.Rows[i].Queue]; err != nil {
			u.of.failed = append(u.of.failed, transport.OpError{Index: u.Rows[i].Op, Err: err})
		}
	}
}

// split returns the parts of u without a row for a queue for which is returns true, and the parts
// with such rows. A Send has parts of both sorts, in the order of its rows. Another unit is one
// part.
func (u *Unit) split(is func(queue string) bool) (without, with []*Unit) {
	belongs := func(r Row) bool { return is(r.Queue) }
	switch {
	case !slices.ContainsFunc(u.Rows, belongs):
		return []*Unit{u}, nil
	case u.Verb != Send:
		return nil, []*Unit{u}
	}
	for start := 0; start < len(u.Rows); {
		end, sort := start+1, is(u.Rows[start].Queue)
		for end < len(u.Rows) && is(u.Rows[end].Queue) == sort {
			end++
		}
		part := &Unit{Rows: u.Rows[start:end], of: u.of}
		if sort {
			with = append(with, part)
		} else {
			without = append(without, part)
		}
		start = end
	}
	return without, with
}

// destinations returns the queues that units send to, each once.
func destinations(units ...*Unit) (queues []string) {
	for _, u := range units {
		for i := range u.Rows {
			queues = append(queues, u.Rows[i].Queue)
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

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
