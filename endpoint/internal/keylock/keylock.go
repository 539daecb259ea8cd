// Package keylock has messages with a key in common handled one after the other, in the order in
// which they arrived.
package keylock

import (
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Key is a key of messages. Keys of different kinds are different.
type Key struct{ Kind, Name string }

// Locks are the locks of all keys. The zero value has none taken. It is safe for concurrent use.
//
// A message takes all of its keys in one step: it is put at the end of the line of each, and holds
// them once it is at the head of all. So no two messages wait for each other. A message that waits
// has no slot, and gets the next one that is free when it holds its keys.
type Locks struct {
	mu    sync.Mutex
	lines map[Key][]*Lock // the holder, and behind it those that wait
}

// Lock is a message's place in the lines of its keys.
type Lock struct {
	of      *Locks
	slot    *pump.Slot
	keys    []Key
	inLine  bool          // false until all messages that arrived earlier are
	missing int           // lines of whose heads it is not
	granted chan struct{} // closed when it holds the keys and has a slot; nil if it never waited
}

// Arrivals puts the messages of a pump in line in the order in which they have started: a message
// with keys waits until every earlier one is in line, or has no keys.
type Arrivals struct {
	locks  *Locks
	passed int64           // every message up to this one has been put in line or had no keys
	early  map[int64]*Lock // messages behind the next; nil: it has no keys
}

// Arrivals returns the order of a new pump.
func (l *Locks) Arrivals() *Arrivals { return &Arrivals{locks: l, early: map[int64]*Lock{}} }

// Pass lets the messages behind that of slot take their keys. It is called for each message that
// has no keys, or takes none for now.
func (a *Arrivals) Pass(slot *pump.Slot) {
	a.locks.mu.Lock()
	defer a.locks.mu.Unlock()
	a.arrive(slot.Order(), nil)
}

// Overtake lets the messages behind that of slot take their keys, unless the message has taken its
// own, or Pass was called for it. The message may take its keys later.
func (a *Arrivals) Overtake(slot *pump.Slot) {
	a.locks.mu.Lock()
	defer a.locks.mu.Unlock()
	if n := slot.Order(); !a.arrived(n) {
		a.arrive(n, nil)
	}
}

// Enter takes keys, without duplicates, for the message of slot. Without arrivals, or after Pass,
// Overtake or another Enter, the message is put at the end of the lines.
func (l *Locks) Enter(arrivals *Arrivals, slot *pump.Slot, keys []Key) *Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &Lock{of: l, slot: slot, keys: keys}
	if arrivals == nil || arrivals.arrived(slot.Order()) {
		k.enter()
	} else {
		arrivals.arrive(slot.Order(), k)
	}
	if !k.inLine || k.missing > 0 {
		k.granted = make(chan struct{})
		slot.Wait() // under the lock: before it is granted
	}
	return k
}

func (a *Arrivals) arrived(n int64) bool {
	_, early := a.early[n]
	return early || n <= a.passed
}

// arrive records that message n takes its place with l, or without keys if that is nil.
func (a *Arrivals) arrive(n int64, l *Lock) {
	if n <= a.passed {
		return
	}
	a.early[n] = l
	for {
		l, ok := a.early[a.passed+1]
		if !ok {
			return
		}
		a.passed++
		delete(a.early, a.passed)
		if l != nil {
			l.enter()
			l.grant()
		}
	}
}

// enter puts l at the end of its lines.
func (l *Lock) enter() {
	l.inLine = true
	if l.of.lines == nil {
		l.of.lines = map[Key][]*Lock{}
	}
	for _, k := range l.keys {
		line := l.of.lines[k]
		l.of.lines[k] = append(line, l)
		if len(line) > 0 {
			l.missing++
		}
	}
}

// grant requests a slot for a message that has waited, if it holds its keys.
func (l *Lock) grant() {
	if l.inLine && l.missing == 0 && l.granted != nil {
		l.slot.Request(l.granted)
	}
}

// Granted returns a channel that is closed when the message holds its keys and has a slot; nil if
// it need not wait.
func (l *Lock) Granted() <-chan struct{} { return l.granted }

// Holds reports whether the lock is of these keys.
func (l *Lock) Holds(keys []Key) bool { return slices.Equal(l.keys, keys) }

// Leave gives the keys up, or the places in their lines. The next messages request a slot before
// the caller frees its own.
func (l *Lock) Leave() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if !l.inLine { // its turn finds no keys, and grants nothing
		l.keys, l.granted = nil, nil
		return
	}
	for _, k := range l.keys {
		line := l.of.lines[k]
		at := slices.Index(line, l)
		if line = slices.Delete(line, at, at+1); len(line) == 0 {
			delete(l.of.lines, k)
			continue
		}
		if l.of.lines[k] = line; at == 0 {
			line[0].missing--
			line[0].grant()
		}
	}
	l.keys = nil
	if l.granted != nil {
		l.slot.Withdraw()
	}
}
