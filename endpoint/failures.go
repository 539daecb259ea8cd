package endpoint

import (
	"container/list"
	"sync"
)

// failureCount remembers how often messages failed in this process, for brokers
// that do not count. It is bounded: the message that failed longest ago is
// forgotten first. The zero value is empty.
type failureCount struct {
	mu      sync.Mutex // guards the rest
	entries map[string]*list.Element
	order   list.List // of *failureEntry, latest failure first
}

type failureEntry struct {
	id string
	n  int
}

const maxFailures = 1000

// add counts a failure of the message and returns how many there are now.
func (f *failureCount) add(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.entries[id]; ok {
		f.order.MoveToFront(el)
		entry := el.Value.(*failureEntry) //nolint:errcheck // nothing else is in the list
		entry.n++
		return entry.n
	}
	if f.entries == nil {
		f.entries = map[string]*list.Element{}
	}
	if f.order.Len() >= maxFailures {
		oldest := f.order.Back()
		delete(f.entries, f.order.Remove(oldest).(*failureEntry).id) //nolint:errcheck // nothing else is in the list
	}
	f.entries[id] = f.order.PushFront(&failureEntry{id: id, n: 1})
	return 1
}

// knows tells whether a failure of the message is remembered.
func (f *failureCount) knows(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries[id] != nil
}

// forget drops what is known of the message: its cycle is over.
func (f *failureCount) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if el, ok := f.entries[id]; ok {
		f.order.Remove(el)
		delete(f.entries, id)
	}
}
