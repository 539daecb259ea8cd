package sqlserver

import (
	"sync"
	"sync/atomic"
)

// maxMemo is how many entries a memo has at most. Each is some kilobytes.
const maxMemo = 1000

// memo remembers what was made of names, some of which name no queue: memo forgets everything when it is full. Its
// methods are safe for concurrent use.
type memo[V any] struct {
	entries sync.Map
	n       atomic.Int64
}

func (m *memo[V]) load(key any) (v V, ok bool) {
	e, ok := m.entries.Load(key)
	if !ok {
		return v, false
	}
	return e.(V), true //nolint:errcheck // nothing else is in the map
}

// add returns the entry of key, which is v where there was none.
func (m *memo[V]) add(key any, v V) V {
	if m.n.Add(1) > maxMemo {
		m.entries.Clear()
		m.n.Store(1)
	}
	e, _ := m.entries.LoadOrStore(key, v)
	return e.(V) //nolint:errcheck // nothing else is in the map
}

// set replaces the entry of key.
func (m *memo[V]) set(key any, v V) { m.entries.Store(key, v) }
