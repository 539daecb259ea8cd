package inbox

import (
	"sync"
)

// begun are the keys of the attempts that began last. Without begun a message would count as new
// although this process has handled a copy between the look and the attempt.
type begun struct {
	mu          sync.Mutex // guards the rest
	n           int64
	now, before map[[16]byte]struct{}
}

// generation is the number of keys that are remembered at least.
const generation = 1024

// count returns the number of attempts that have begun.
func (b *begun) count() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// isFirst adds an attempt at the message with a key. It reports whether no other attempt at the
// message has begun since n attempts had begun; false if begun does not know.
func (b *begun) isFirst(key [16]byte, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, isNow := b.now[key]
	_, wasBefore := b.before[key]
	known := b.n-n < generation
	if len(b.now) >= generation {
		b.now, b.before = b.before, b.now
		clear(b.now)
	}
	if b.now == nil {
		b.now = make(map[[16]byte]struct{}, generation)
	}
	b.now[key] = struct{}{}
	b.n++
	return known && !isNow && !wasBefore
}
