package harness

import (
	"slices"
	"sync"
)

// Tally counts calls and records a text of each. A Tally is safe for concurrent use.
type Tally struct {
	mu   sync.Mutex
	seen []string
}

// Add records a text and returns the number of texts.
func (c *Tally) Add(s string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, s)
	return len(c.seen)
}

// List returns a copy of the texts, in the order of Add.
func (c *Tally) List() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.seen)
}

// Gauge is the number of calls that run now, and the highest number so far. A Gauge is safe
// for concurrent use.
type Gauge struct {
	mu       sync.Mutex
	now, max int
}

// Change adds to the number of calls that run now.
func (g *Gauge) Change(by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += by
	g.max = max(g.max, g.now)
}

// Now returns the number of calls that run now.
func (g *Gauge) Now() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

// Peak returns the highest number so far.
func (g *Gauge) Peak() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.max
}
