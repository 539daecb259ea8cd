package sqs

import (
	"sync"
	"time"
)

// cache keeps values by name. The zero value is ready, and safe for concurrent use.
type cache[V any] struct {
	age time.Duration // for which a value is kept; 0 is forever

	mu    sync.Mutex // guards known
	known map[string]cached[V]
}

type cached[V any] struct {
	value V
	since time.Time
}

func (c *cache[V]) get(name string) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.known[name]
	return known.value, ok && (c.age == 0 || time.Since(known.since) < c.age)
}

func (c *cache[V]) set(name string, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = make(map[string]cached[V])
	}
	c.known[name] = cached[V]{v, time.Now()}
}

func (c *cache[V]) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}
