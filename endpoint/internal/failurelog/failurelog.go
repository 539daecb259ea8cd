// Package failurelog remembers the failures of messages in memory.
package failurelog

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Log remembers how often messages have failed in this process and cycle, and the texts of their
// errors. Messages and bytes of text are bounded. Over the first bound the log forgets the message
// with the oldest last failure, over the second bound the texts of this message. A Log is safe for
// concurrent use.
type Log struct {
	messages, bytes int // bounds

	mu      sync.Mutex // guards the rest
	entries map[Key]*list.Element
	order   list.List // of *entry, latest failure first
	size    int       // bytes of all texts
}

// Key identifies a message in a queue. The size of a key does not depend on the length of the names.
type Key [sha256.Size]byte

// KeyOf returns the key of the message with an id in a queue.
func KeyOf(queue, id string) Key { return sha256.Sum256([]byte(queue + "\x00" + id)) }

// Known holds the failures of a message in a cycle.
type Known struct {
	Since        time.Time // of the first failure; zero before
	Failed, Lost int       // failures, and leases lost before the message was settled
	Past         []recoverability.Past
	Throttled    fault.Throttled // failures since the last counted failure
	stranded     int
}

type entry struct {
	Known
	key Key
}

// maxPast bounds the remembered failures with texts of a message.
const maxPast = 10

// New returns a log with bounds.
func New(messages, bytes int) *Log {
	return &Log{messages: messages, bytes: bytes, entries: map[Key]*list.Element{}}
}

// Count counts a failure of the message and returns its failures in this cycle. first begins a new
// cycle.
func (l *Log) Count(key Key, now time.Time, first bool) Known {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first {
		l.drop(key)
	}
	e := l.touch(key)
	e.Throttled = fault.Throttled{}
	if e.Failed++; e.Since.IsZero() {
		e.Since = now
	}
	known := e.Known
	known.Past = slices.Clip(e.Past)
	return known
}

// LeaseLost counts a lease lost before the message was settled.
func (l *Log) LeaseLost(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touch(key).Lost++
}

// Stranded counts a failure whose action could not be carried out because of what the user's code
// wrote for it, and returns the number of these failures in this cycle.
func (l *Log) Stranded(key Key) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.touch(key)
	e.stranded++
	return e.stranded
}

// Record adds the text of the last counted failure.
func (l *Log) Record(key Key, p recoverability.Past) {
	l.mu.Lock()
	defer l.mu.Unlock()
	el, ok := l.entries[key]
	if !ok {
		return
	}
	e := entryOf(el)
	if over := len(e.Past) + 1 - maxPast; over > 0 {
		l.size -= size(e.Past[:over])
		e.Past = slices.Clone(e.Past[over:]) // Count has returned the old slice
	}
	e.Past = append(e.Past, p)
	l.size += size(e.Past[len(e.Past)-1:])
	for el := l.order.Back(); el != nil && l.size > l.bytes; el = el.Prev() {
		oldest := entryOf(el)
		l.size -= size(oldest.Past)
		oldest.Past = nil
	}
}

// Known returns the failures of the message in this cycle, and reports whether anything is known of
// it.
func (l *Log) Known(key Key) (Known, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if el, ok := l.entries[key]; ok {
		return entryOf(el).Known, true
	}
	return Known{}, false
}

// SetThrottled remembers the failures that used up no retry, where no copy of the message has them
// in its headers.
func (l *Log) SetThrottled(key Key, t fault.Throttled) {
	if t.Failures == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.touch(key).Throttled = t
}

// Forget drops a message at the end of its cycle.
func (l *Log) Forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
}

// Clear ends the cycle of a message, and keeps that this process knows the message: further messages
// may have the same key.
func (l *Log) Clear(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(key)
	l.touch(key)
}

// touch returns the message's entry, moved to the front, or a new one.
func (l *Log) touch(key Key) *entry {
	if el, ok := l.entries[key]; ok {
		l.order.MoveToFront(el)
		return entryOf(el)
	}
	if l.order.Len() >= l.messages {
		l.drop(entryOf(l.order.Back()).key)
	}
	e := &entry{key: key}
	l.entries[key] = l.order.PushFront(e)
	return e
}

func (l *Log) drop(key Key) {
	if el, ok := l.entries[key]; ok {
		l.size -= size(entryOf(el).Past)
		l.order.Remove(el)
		delete(l.entries, key)
	}
}

func entryOf(el *list.Element) *entry {
	return el.Value.(*entry) //nolint:errcheck // nothing else is in the list
}

// size returns the bytes of failures.
func size(past []recoverability.Past) int {
	const fixed = 100
	n := 0
	for _, p := range past {
		n += fixed + len(p.Class) + len(p.Text) + len(p.Instance)
	}
	return n
}
