package dialect

import (
	"sync"
	"sync/atomic"
)

// maxMemo is the largest number of entries of a Memo. Each has some kilobytes.
const maxMemo = 1000

// Memo caches values by name. Some names are of queues that do not exist, so a full Memo forgets
// all entries. Its zero value is empty. Its methods are safe for concurrent use.
type Memo[V any] struct {
	entries sync.Map
	n       atomic.Int64
}

// Load returns the entry of key.
func (m *Memo[V]) Load(key any) (v V, ok bool) {
	e, ok := m.entries.Load(key)
	if !ok {
		return v, false
	}
	return e.(V), true //nolint:errcheck // the map has no other values
}

// Add returns the entry of key, after setting it to v where there is none.
func (m *Memo[V]) Add(key any, v V) V {
	if m.n.Add(1) > maxMemo {
		m.entries.Clear()
		m.n.Store(1)
	}
	e, _ := m.entries.LoadOrStore(key, v)
	return e.(V) //nolint:errcheck // the map has no other values
}

// Set replaces the entry of key.
func (m *Memo[V]) Set(key any, v V) { m.entries.Store(key, v) }

// Len returns the number of entries.
func (m *Memo[V]) Len() (n int) {
	m.entries.Range(func(any, any) bool { n++; return true })
	return n
}
