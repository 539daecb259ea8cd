package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

// obstacles finds out why units fail, refuses operations for queues that take no messages, and
// watches for the end of the obstacle.
type obstacles struct {
	*core

	unusable *unusable
	forwards *forwards
}

// find remembers the missing or locked queues because of which a batch failed with err, and reports
// whether there are any.
func (o *obstacles) find(ctx context.Context, err error, queues []string) (found bool) {
	var unusable []bool
	note := func(queue string) {
		o.unusable.miss(queue)
		o.forwards.gone(queue)
	}
	locks := o.store.Locks
	switch class := o.store.Classify(err); {
	case class == Locked && locks != nil && len(queues) > 0:
		unusable, err = locks.Locked(ctx, queues)
		note = o.lock
	case class == Refused && errors.Is(err, transport.ErrNoQueue):
		unusable, err = o.store.Topology.Missing(ctx, queues)
	}
	for i, q := range queues {
		if err == nil && unusable[i] {
			note(q)
			found = true
		}
	}
	return found
}

// look finds the queues because of which units were refused.
func (o *obstacles) look(err error, units []*Unit) bool {
	ctx, cancel := context.WithTimeout(o.work, maxWait)
	defer cancel()
	return o.find(ctx, err, destinations(units...))
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

// lock refuses operations for queue until the lock on its table ends.
func (o *obstacles) lock(queue string) {
	if o.unusable.lock(queue) {
		o.refuses(queue, lockAdvice)
	}
}

// refuses logs that operations for queue are refused, and starts a watcher if there is none.
func (o *obstacles) refuses(queue, reason string) {
	o.cfg.Env.Log().WarnContext(o.life, "a queue takes no messages: deliveries that send to it are postponed, and use up no attempt",
		slog.String("queue", queue), slog.String("reason", reason))
	if o.unusable.watch() {
		o.running.Go(o.watchQueues)
	}
}

// watchQueues looks for the ends of locks and calls back rows as probes, until all queues take
// messages.
func (o *obstacles) watchQueues() {
	for {
		queues, watching := o.unusable.watched()
		if !watching || backoff.Sleep(o.life, lockPoll) != nil {
			return
		}
		if len(queues) > 0 {
			o.watchLocks(queues)
		}
		for _, row := range o.unusable.probes() {
			o.hasten(row.queue, []int64{row.seq})
		}
	}
}

// watchLocks asks for the end of the locks on queues.
func (o *obstacles) watchLocks(queues []string) {
	ctx, cancel := context.WithTimeout(o.life, maxWait)
	defer cancel()
	locked, err := o.store.Locks.Locked(ctx, queues)
	for i, q := range queues {
		if err != nil || locked[i] {
			continue
		}
		if p := o.unlock(q); p != nil {
			o.hastenAll(p)
		}
	}
}

// unlock ends the refusal of operations for queue, and returns the rows that wait for the queue. It
// returns nil if no operation was refused.
func (o *obstacles) unlock(queue string) *postponed {
	p := o.unusable.unlock(queue)
	if p == nil || p.obstacle == suspected {
		return nil
	}
	o.cfg.Env.Log().InfoContext(o.life, "a queue takes messages again",
		slog.String("queue", queue), slog.Duration("after", time.Since(p.since)), slog.Int("waiting", p.n))
	return p
}

// hastenAll makes the rows of p visible.
func (o *obstacles) hastenAll(p *postponed) {
	for from, seqs := range p.rows {
		o.hasten(from, slices.Sorted(maps.Keys(seqs)))
	}
}

// hasten makes rows visible at once. When that fails they become visible at the end of their wait.
func (o *obstacles) hasten(queue string, seqs []int64) {
	if o.store.Hastener == nil {
		return
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		ctx, cancel := context.WithTimeout(o.life, maxWait)
		err := o.store.Hastener.Hasten(ctx, queue, part)
		cancel()
		if err != nil {
			o.cfg.Env.Log().WarnContext(o.life, "messages that waited for the end of a lock cannot be made visible now: they are delivered later",
				slog.String("queue", queue), slog.Int("messages", len(part)), slog.Duration("within", postponedFor), slog.Any("error", err))
			return
		}
		o.wakes.announce(queue)
	}
}

// impede refuses operations for queue, the one from [obstacles.failingQueue] because of which units
// failed with err, until a probe of the queue succeeds. When another queue is impeded because of a
// full disk or the like, the database itself is at fault, and no queue is refused. impede returns
// the error of the units.
func (o *obstacles) impede(err error, units []*Unit, queue string) error {
	class, reason := o.store.Classify(err), rowLockAdvice
	if class == Impeded {
		reason = fmt.Sprintf("the database cannot write to its table: %.300v", err)
	}
	if queue == "" { // the cause is the row that a unit settles, or no longer there
		return &transport.BusyError{Queue: units[0].somewhere(), Reason: reason}
	}
	if others := o.unusable.impededBeside(queue); class == Impeded && len(others) > 0 {
		o.unimpede(append(others, queue))
		return o.verdict(err)
	}
	if o.unusable.impede(queue, class, reason) {
		o.refuses(queue, reason)
	}
	return &transport.BusyError{Queue: queue, Reason: reason}
}

// impediment returns a [*transport.BusyError] if err is that of a transaction which waited too long
// for a lock when it inserted the rows of u. A named row waits for transactions with the same name,
// which says nothing about its queue, and so do the handler's own writes.
func (o *obstacles) impediment(ctx context.Context, err error, u *Unit) error {
	if o.store.Classify(err) != Locked || errors.Is(err, ErrWrites) || len(u.Rows) == 0 ||
		u.HasNames() {
		return nil
	}
	busy, closed := ask(ctx, o.core, nil, func(context.Context) (error, error) {
		units := []*Unit{u}
		return o.impede(err, units, o.failingQueue(units)), nil
	})
	return cmp.Or(busy, closed)
}

// failingQueue returns the destination of units at whose rows a write fails. A single destination
// is the cause if the units settle no rows, and if the store cannot tell.
func (o *obstacles) failingQueue(units []*Unit) string {
	queues := destinations(units...)
	finder := o.store.FaultFinder
	switch {
	case len(queues) == 1 && (finder == nil || !slices.ContainsFunc(units, (*Unit).settles)):
		return queues[0]
	case finder == nil || len(queues) == 0:
		return ""
	}
	ctx, cancel := context.WithTimeout(o.work, maxWait)
	defer cancel()
	return finder.FailingQueue(ctx, units)
}

// unimpede ends the refusal of operations for queues. The senders of a batch do not wait until the
// postponed rows are visible.
func (o *obstacles) unimpede(queues []string) {
	for _, q := range queues {
		if !o.unusable.diverts(q) {
			continue
		}
		if p := o.unlock(q); p != nil {
			o.running.Go(func() { o.hastenAll(p) })
		}
	}
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

// detour writes the units for queues that would hold up a batch, or fail it.
type detour struct {
	*core

	unusable  *unusable
	obstacles *obstacles

	units *batch.Batcher[*Unit]
}

func newDetour(o *obstacles) *detour {
	d := &detour{core: o.core, unusable: o.unusable, obstacles: o}
	d.units = batch.New(batch.Config[*Unit]{
		Flush: d.flush, Flushers: 1, MaxItems: maxUnits, Weight: (*Unit).size, MaxWeight: maxFlushBytes,
	})
	return d
}

// take writes the parts of a unit that were diverted. kept is true while the batcher of the detour
// still uses the parts, whose results then must not be touched.
func (d *detour) take(ctx context.Context, diverted []*Unit) (kept bool) {
	errs := d.units.DoAll(ctx, diverted)
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, batch.ErrAbandoned) }) {
		return true
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, batch.ErrClosed):
			fail(diverted[i:i+1], transport.ErrClosed)
		default: // the unit was withdrawn
			fail(diverted[i:i+1], err)
		}
	}
	return false
}

// flush writes diverted units, in one batch for each set of destinations. The results are
// those of the units' works.
func (d *detour) flush(units []*Unit, _ []error) {
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
		d.write(groups[key])
	}
}

// detourFails is the number of failed writes of units with the same destinations. Each may wait for
// a lock for a second. One of 200 units that cannot be written is found in as many.
const detourFails = 9

// write writes units with the same destinations. Each of them fails with a
// [*transport.BusyError] while a lock or the like keeps them from being written.
func (d *detour) write(units []*Unit) {
	fails := 0
	d.writeParts(units, &fails)
}

// writeParts writes units, or each half of them if one of them may be the cause of an error. fails
// counts the errors.
func (d *detour) writeParts(units []*Unit, fails *int) {
	queues := destinations(units...)
	for _, q := range queues {
		if err := d.unusable.failedJustNow(q); err != nil {
			fail(units, err)
			return
		}
	}
	err := d.writeWaiting(units)
	if err == nil {
		d.wakes.flushed(units)
		d.obstacles.unimpede(queues)
		return
	}
	class, queue := d.store.Classify(err), ""
	impeded := class == Locked || class == Impeded
	if impeded {
		queue = d.obstacles.failingQueue(units)
		*fails++
	}
	switch {
	case len(units) > 1 && (class == Refused || impeded && queue == "" && *fails < detourFails):
		half := len(units) / 2
		d.writeParts(units[:half], fails)
		d.writeParts(units[half:], fails)
	case impeded:
		fail(units, d.obstacles.impede(err, units, queue))
	default:
		fail(units, d.verdict(err))
	}
}

// writeWaiting writes units, and waits for locks for longer than a batch does.
func (d *detour) writeWaiting(units []*Unit) error {
	if d.store.Locks != nil {
		return d.writeOnce(units, d.store.Locks.FlushWaiting)
	}
	return d.writeOnce(units, d.store.Queues.Flush)
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
