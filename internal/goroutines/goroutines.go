// Package goroutines starts the goroutines of a connection and waits for them when it closes.
package goroutines

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
)

// A Group is a set of goroutines that end before Stop returns. The zero value is ready to use. A
// Group is safe for concurrent use and must not be copied.
type Group struct {
	// Keep is how many goroutines wait for another function when theirs has returned. That pays
	// where the functions need large stacks, which a new goroutine has to grow first. 0: none.
	Keep int

	mu      sync.Mutex // guards the rest, and starting against waiting
	stopped bool
	spare   []chan func() // of goroutines that wait for a function, the last one first
	running sync.WaitGroup
}

// Go runs f in a goroutine and returns true. After Stop was called it returns false and does not
// run f.
func (g *Group) Go(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	if last := len(g.spare) - 1; last >= 0 {
		g.spare[last] <- f // has room: its goroutine has received the function before
		g.spare = g.spare[:last]
		return true
	}
	g.running.Go(func() { g.run(f) })
	return true
}

// run runs f and the functions that follow.
func (g *Group) run(f func()) {
	var next chan func()
	for f != nil {
		f()
		f = nil // a waiting goroutine keeps nothing alive
		if next == nil && g.Keep > 0 {
			next = make(chan func(), 1)
		}
		if g.keep(next) {
			f = <-next
		}
	}
}

// keep reports whether the goroutine is to wait for another function, which it receives from next;
// nil ends it.
func (g *Group) keep(next chan func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || len(g.spare) >= g.Keep {
		return false
	}
	g.spare = append(g.spare, next)
	return true
}

// Stop makes Go return false from now on, and returns when the functions that run have returned.
func (g *Group) Stop() {
	g.mu.Lock()
	g.stopped = true
	for _, next := range g.spare {
		close(next)
	}
	g.spare = nil
	g.mu.Unlock()
	g.running.Wait()
}

// ID returns the number that the runtime writes at the head of the calling goroutine's stack. ID
// takes about a microsecond. It is for finding the goroutine among all stacks, and for nothing
// else.
func ID() uint64 {
	var head [64]byte
	return ParseID(head[:runtime.Stack(head[:], false)])
}

// ParseID returns the number of the goroutine whose stack runtime.Stack has written; 0 if there is
// none.
func ParseID(stack []byte) uint64 {
	rest, ok := bytes.CutPrefix(stack, []byte("goroutine "))
	if !ok {
		return 0
	}
	digits, _, _ := bytes.Cut(rest, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
