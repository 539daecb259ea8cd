package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
