// Package keylock orders the handling of messages with a key in common: one message after another,
// in the order of arrival.
package keylock

import (
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Key is a key of messages. Keys of different kinds are different.
type Key struct{ Kind, Name string }

// Locks are the locks of all keys. In the zero value all keys are free. Locks is safe for concurrent
// use.
//
// A message takes all of its keys in a single step: the message is put at the end of the line of
// each key, and holds the keys when the message is at the head of all lines. So no two messages wait
// for each other. A waiting message has no slot, and gets the next free slot when the message holds
// its keys.
type Locks struct {
	mu    sync.Mutex
	lines map[Key][]*Lock // the holder, then the waiting messages
}

// Lock is a message's place in the lines of its keys.
type Lock struct {
	of      *Locks
	slot    *pump.Slot
	keys    []Key
	inLine  bool          // all earlier messages are in line, too
	missing int           // number of lines with another message at the head
	granted chan struct{} // closed when the message holds the keys and a slot; nil without a wait
}

// Arrivals puts the messages of a pump in line in the order of their starts: a message with keys
// waits until every earlier message is in line, or has no keys.
type Arrivals struct {
	locks  *Locks
	passed int64           // all messages up to this number are in line or have no keys
	early  map[int64]*Lock // messages behind the next; a nil Lock is a message without keys
}

// Arrivals returns the order of a new pump.
func (l *Locks) Arrivals() *Arrivals { return &Arrivals{locks: l, early: map[int64]*Lock{}} }

// Pass lets the messages behind the message of slot take their keys. Pass is called for each message
// without keys, and for a message that takes no keys for now.
func (a *Arrivals) Pass(slot *pump.Slot) {
	a.locks.mu.Lock()
	defer a.locks.mu.Unlock()
	a.arrive(slot.Order(), nil)
}

// Overtake lets the messages behind the message of slot take their keys, unless the message has
// taken keys, or Pass was called for the message. The message may take its keys later.
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
		slot.Wait() // under the lock: before the grant
	}
	return k
}

func (a *Arrivals) arrived(n int64) bool {
	_, early := a.early[n]
	return early || n <= a.passed
}

// arrive records that message n takes its place with l, or without keys if l is nil.
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

// enter puts l at the end of the lines of its keys.
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

// grant requests a slot for a message that has waited, if the message holds its keys.
func (l *Lock) grant() {
	if l.inLine && l.missing == 0 && l.granted != nil {
		l.slot.Request(l.granted)
	}
}

// Leave gives the keys up, or the places in the lines. The next messages request a slot before the
// caller frees its slot.
func (l *Lock) Leave() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if !l.inLine { // the turn of the message finds no keys, and grants nothing
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

// Held is a delivery's part in the locks. The part lasts for all attempts at the delivery. A message
// gives its keys up when the message is settled, or earlier if the message waits for something of a
// message with an equal key. The zero value is for an endpoint without keys. A Held is not safe for
// concurrent use.
type Held struct {
	Locks    *Locks    // nil: no handler has keys
	Arrivals *Arrivals // nil in quarantine, where no two messages are handled at once

	lock   *Lock         // nil: no keys are held
	waited time.Duration // in all
}

// Waited returns the time of all waits of the message for keys.
func (h *Held) Waited() time.Duration { return h.waited }

// Has reports whether the message has the keys.
func (h *Held) Has(keys []Key) bool { return h.lock != nil && slices.Equal(h.lock.keys, keys) }

// Take takes the keys, in place of the held keys. If the message has to wait, Take calls await with
// a channel that is closed when the message has the keys and a slot.
func (h *Held) Take(slot *pump.Slot, keys []Key, await func(granted <-chan struct{}) error) error {
	if h.lock != nil {
		h.lock.Leave()
	}
	h.lock = h.Locks.Enter(h.Arrivals, slot, keys)
	granted := h.lock.granted
	if granted == nil {
		return nil
	}
	began := time.Now()
	defer func() { h.waited += time.Since(began) }()
	return await(granted)
}

// GiveUp lets the next messages with the keys be handled, and the messages behind this message take
// keys. The message may take keys again later, at the end of the lines.
func (h *Held) GiveUp(slot *pump.Slot) {
	if h.lock != nil {
		h.lock.Leave()
		h.lock = nil
	}
	if h.Arrivals != nil {
		h.Arrivals.Pass(slot)
	}
}
