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

// unusable remembers the queues that take no messages. Operations for them are refused before they fail a batch with
// the operations of others.
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
	if _, locked := u.locked[queue]; locked {
		return &transport.BusyError{Queue: queue, Reason: lockAdvice}
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

// lock notes that queue is locked. It reports whether that is new, and whether it is the first, for which the caller
// starts the watcher.
func (u *unusable) lock(queue string) (added, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.locked[queue] != nil {
		return false, false
	}
	if u.locked == nil {
		u.locked = map[string]*postponed{}
	}
	u.locked[queue] = &postponed{since: time.Now(), rows: map[string]map[int64]struct{}{}}
	first, u.watching = !u.watching, true
	u.count()
	return true, first
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

// watched returns the locked queues. Without any the watcher has to end: the next lock starts another.
func (u *unusable) watched() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.watching = len(u.locked) > 0
	return slices.Sorted(maps.Keys(u.locked))
}

// find remembers the missing or locked queues because of which a batch failed with err, and reports whether there are
// any.
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
		note = func(queue string) { c.lock(locks, queue) }
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

// without fails the rows for queues that take no messages, and returns the rest of units. It reports whether it has
// failed any.
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
		rest = append(rest, u.without(reasons)...)
	}
	return rest, true
}

// without returns the parts of u that can be written: all, none, or of a Send the rows between those for queues in
// reasons.
func (u *Unit) without(reasons map[string]error) (rest []*Unit) {
	failed := u.of.failed
	start := 0
	for i := range u.Rows {
		err := reasons[u.Rows[i].Queue]
		if err == nil {
			continue
		}
		if u.of.failed = append(u.of.failed, transport.OpError{Index: u.Rows[i].Op, Err: err}); start < i {
			rest = append(rest, &Unit{Rows: u.Rows[start:i], of: u.of})
		}
		start = i + 1
	}
	switch {
	case len(u.of.failed) == len(failed):
		return []*Unit{u}
	case u.Verb != Send:
		return nil
	case start < len(u.Rows):
		rest = append(rest, &Unit{Rows: u.Rows[start:], of: u.of})
	}
	return rest
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
