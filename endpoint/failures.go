package endpoint

import (
	"container/list"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

// failureMemory remembers how messages failed in this process and cycle: how often, for brokers
// that do not count, and what was said. It is bounded in messages and in what they said. The
// message that failed longest ago is forgotten first; over the bound of texts, first what it said.
type failureMemory struct {
	messages, bytes int // bounds

	mu      sync.Mutex // guards the rest
	entries map[failureKey]*list.Element
	order   list.List // of *messageFailures, latest failure first
	said    int       // bytes of all texts
}

// failureKey is a message in a queue. It is of one size, however long their names are.
type failureKey [sha256.Size]byte

type messageFailures struct {
	key          failureKey
	since        time.Time // of the first failure; zero before
	failed, lost int
	throttled    recoverability.Throttled // since the last of them
	past         []recoverability.Past
}

// maxPast is how many failures of one message are remembered, not only counted.
const maxPast = 10

func (in *incoming) failureKey() failureKey {
	return sha256.Sum256([]byte(in.queue + "\x00" + in.id))
}

// count counts a failure of the message and returns what is known of it now. It begins anew at the
// first of a cycle.
func (f *failureMemory) count(key failureKey, now time.Time, first bool) messageFailures {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first {
		f.drop(key)
	}
	m := f.touch(key)
	m.throttled = recoverability.Throttled{}
	if m.failed++; m.since.IsZero() {
		m.since = now
	}
	return messageFailures{since: m.since, failed: m.failed, lost: m.lost, past: slices.Clip(m.past)}
}

// lose counts a lease that was lost before the message was dealt with.
func (f *failureMemory) lose(key failureKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(key).lost++
}

// note remembers what was said at the failure that was counted last.
func (f *failureMemory) note(key failureKey, p recoverability.Past) {
	f.mu.Lock()
	defer f.mu.Unlock()
	el, ok := f.entries[key]
	if !ok {
		return
	}
	m := entry(el)
	if over := len(m.past) + 1 - maxPast; over > 0 {
		f.said -= size(m.past[:over])
		m.past = slices.Clone(m.past[over:]) // what was given out stays as it is
	}
	m.past = append(m.past, p)
	f.said += size(m.past[len(m.past)-1:])
	for el := f.order.Back(); el != nil && f.said > f.bytes; el = el.Prev() {
		f.said -= size(entry(el).past)
		entry(el).past = nil
	}
}

// knows tells whether the message has failed, or its lease was lost, here.
func (f *failureMemory) knows(key failureKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries[key] != nil
}

// failed is how many failures of the message this process has seen in this cycle.
func (f *failureMemory) failed(key failureKey) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.entries[key]; ok {
		return entry(el).failed
	}
	return 0
}

// throttle remembers the failures of a message that used up no retry, where no copy of it does.
func (f *failureMemory) throttle(key failureKey, t recoverability.Throttled) {
	if t.Failures == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(key).throttled = t
}

// throttled are the failures that throttle has remembered.
func (f *failureMemory) throttled(key failureKey) recoverability.Throttled {
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.entries[key]; ok {
		return entry(el).throttled
	}
	return recoverability.Throttled{}
}

// forget drops what is known of the message: its cycle is over.
func (f *failureMemory) forget(key failureKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(key)
}

// touch finds what is known of the message, or makes room for it.
func (f *failureMemory) touch(key failureKey) *messageFailures {
	if el, ok := f.entries[key]; ok {
		f.order.MoveToFront(el)
		return entry(el)
	}
	if f.entries == nil {
		f.entries = map[failureKey]*list.Element{}
	}
	if f.order.Len() >= f.messages {
		f.drop(entry(f.order.Back()).key)
	}
	m := &messageFailures{key: key}
	f.entries[key] = f.order.PushFront(m)
	return m
}

func (f *failureMemory) drop(key failureKey) {
	if el, ok := f.entries[key]; ok {
		f.said -= size(entry(el).past)
		f.order.Remove(el)
		delete(f.entries, key)
	}
}

func entry(el *list.Element) *messageFailures {
	return el.Value.(*messageFailures) //nolint:errcheck // nothing else is in the list
}

// size is what remembering it takes, in bytes.
func size(past []recoverability.Past) int {
	const fixed = 100
	n := 0
	for _, p := range past {
		n += fixed + len(p.Class) + len(p.Text) + len(p.Instance)
	}
	return n
}
