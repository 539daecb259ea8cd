package tablequeue

import (
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

const (
	// postponedFor bounds the wait of a row for the end of a lock, where this process does not
	// notice it.
	postponedFor = 30 * time.Second
	// briefly is the wait of a row for a lock that has just ended, or that this process does not
	// know.
	briefly = 500 * time.Millisecond
	// unnotedFor is the wait of a row that is not remembered, because too many are.
	unnotedFor   = 5 * time.Second
	maxPostponed = 100_000 // rows that are remembered for one lock
	hastenRows   = 1000    // in one statement
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

// postponement returns the wait of a row for queue.
func (u *unusable) postponement(queue string) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch p := u.locked[queue]; {
	case p == nil:
		return briefly
	case p.n >= maxPostponed:
		return unnotedFor
	}
	return postponedFor
}

// postpone notes that row seq of from waits for the end of the lock on queue. It reports whether
// there is a lock.
func (u *unusable) postpone(queue, from string, seq int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.locked[queue]
	if p == nil {
		return false
	}
	seqs := p.rows[from]
	if seqs == nil {
		seqs = map[int64]struct{}{}
		p.rows[from] = seqs
	}
	if _, again := seqs[seq]; !again {
		seqs[seq] = struct{}{}
		p.n++
	}
	return true
}

// detourWait is the time between two probes of an impeded queue.
const detourWait = time.Second

const lockAdvice = "another transaction has locked its table, as VACUUM FULL, ALTER TABLE and index maintenance do; " +
	"its messages are sent when the lock ends"

const rowLockAdvice = "a write to its table waits for another transaction, as a trigger does that changes a row which that transaction has " +
	"changed; its messages are sent when the write succeeds"

// obstacle is what keeps messages from a queue.
type obstacle int8

const (
	// tableLocked: the watcher looks for the end of the lock. Until then operations are refused.
	tableLocked obstacle = iota
	// suspected: a statement with rows for the queue failed. Units for the queue take the detour.
	suspected
	// impeded: a write by itself failed, too. Operations are refused until a probe succeeds.
	impeded
)

// postponed is a queue that takes no messages, with the rows that wait for it.
type postponed struct {
	obstacle obstacle
	class    Class // of the error
	reason   string
	since    time.Time
	probe    time.Time // of an impeded queue: from then on a unit is written, as a probe
	failed   time.Time // the last probe
	called   time.Time // the last row, as a probe

	rows map[string]map[int64]struct{} // seqs by queue
	n    int
}

// admits reports whether an operation for the queue is not refused. Of an impeded queue that
// operation is a probe.
func (p *postponed) admits() bool {
	now := time.Now()
	if p.obstacle == impeded && !now.Before(p.probe) {
		p.probe = now.Add(2 * detourWait) // the probe itself waits for a second
		return true
	}
	return p.obstacle == suspected
}

// forgetAfter is the time without a probe after which a queue counts as one that takes messages.
const forgetAfter = time.Minute

// waitingRow is a row that waits for a queue.
type waitingRow struct {
	queue string // that the row is in
	seq   int64
}

// next returns a row that is to be the next probe, and forgets it. A row is delivered some time
// after the call, so the next is called after a pause.
func (p *postponed) next() (row waitingRow, ok bool) {
	now := time.Now()
	if p.obstacle != impeded || now.Before(p.probe) || now.Sub(p.called) < detourWait {
		return waitingRow{}, false
	}
	for from, seqs := range p.rows {
		for seq := range seqs {
			delete(seqs, seq)
			p.n--
			p.called = now
			return waitingRow{from, seq}, true
		}
	}
	return waitingRow{}, false
}
