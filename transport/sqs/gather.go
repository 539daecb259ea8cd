package sqs

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// gather lets many goroutines share requests of up to most items that weigh up to room together. A request leaves
// when it is full, and else when linger is over: SQS is paid by the request. Where nobody else is about, nothing waits:
// after a request with one item the next leaves at once, and so does what nobody can join any more.
type gather[T any] struct {
	flush  func(items []T) []error // an error for each; called by several goroutines at once
	weigh  func(T) int             // nil: nothing weighs anything
	alone  func() bool             // whether nobody else can come for now; nil: nobody else came with the last one
	linger time.Duration
	room   int
	tasks  *tasks

	mu      sync.Mutex // guards what follows
	waiting []*ticket[T]
	timer   *time.Timer // running while something waits, unless it has run out
	due     bool        // it has
	lonely  bool        // the last request had one item and nobody was waiting
	running int
}

const (
	// most is how many entries SQS and SNS take in a request.
	most = 10
	// flushers bounds the requests of a gather that are under way.
	flushers = 8
)

// ticket is an item on its way.
type ticket[T any] struct {
	item T
	done chan struct{} // closed when err holds
	err  error
}

func newGather[T any](tasks *tasks, linger time.Duration, flush func([]T) []error) *gather[T] {
	return &gather[T]{flush: flush, linger: linger, tasks: tasks, lonely: true}
}

// submit has items flushed, in their order as far as they share a request.
func (g *gather[T]) submit(items ...T) []*ticket[T] {
	ts := make([]*ticket[T], len(items))
	for i, item := range items {
		ts[i] = &ticket[T]{item: item, done: make(chan struct{})}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, ts...)
	g.kick()
	return ts
}

// do submits items and waits for what becomes of them. What ctx ends before its turn is not sent; of the rest it is not
// known.
func (g *gather[T]) do(ctx context.Context, items []T) []error {
	ts := g.submit(items...)
	errs := make([]error, len(ts))
	for i, t := range ts {
		select {
		case <-t.done:
			errs[i] = t.err
			continue
		case <-ctx.Done():
		}
		if g.withdraw(t) {
			errs[i] = context.Cause(ctx)
			continue
		}
		select {
		case <-t.done:
			errs[i] = t.err
		default:
			errs[i] = errAbandoned
		}
	}
	return errs
}

// withdraw takes t back, unless it is being flushed or has been.
func (g *gather[T]) withdraw(t *ticket[T]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.waiting {
		if other == t {
			g.waiting = append(g.waiting[:i:i], g.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// kick starts the requests that are due. Called with mu held.
func (g *gather[T]) kick() {
	for len(g.waiting) > 0 && g.running < flushers {
		n, full := g.next()
		if !full && !g.due && !g.nobodyElse() {
			g.arm()
			return
		}
		batch := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		if !full || len(g.waiting) == 0 {
			g.disarm()
		}
		g.running++
		if !g.tasks.start(func() { g.run(batch) }) {
			g.running--
			fail(batch, transport.ErrClosed)
		}
	}
}

// nobodyElse tells whether waiting for company is in vain. Called with mu held.
func (g *gather[T]) nobodyElse() bool {
	if g.alone != nil {
		return g.alone()
	}
	return g.lonely && g.running == 0
}

// next is how many of those that wait make a request, and whether no more would fit. Called with mu held.
func (g *gather[T]) next() (n int, full bool) {
	weight := 0
	for _, t := range g.waiting {
		if n == most {
			return n, true
		}
		if g.weigh != nil {
			weight += g.weigh(t.item)
			if n > 0 && weight > g.room {
				return n, true
			}
		}
		n++
	}
	return n, n == most
}

func (g *gather[T]) arm() {
	if g.timer == nil {
		var own *time.Timer
		own = time.AfterFunc(g.linger, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.timer == own {
				g.due = true
				g.kick()
			}
		})
		g.timer = own
	}
}

func (g *gather[T]) disarm() {
	if g.timer != nil {
		g.timer.Stop()
	}
	g.timer, g.due = nil, false
}

func (g *gather[T]) run(batch []*ticket[T]) {
	items := make([]T, len(batch))
	for i, t := range batch {
		items[i] = t.item
	}
	errs := g.flush(items)
	for i, t := range batch {
		t.err = errs[i]
		close(t.done)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	g.lonely = len(batch) == 1 && len(g.waiting) == 0
	g.kick()
}

func fail[T any](batch []*ticket[T], err error) {
	for _, t := range batch {
		t.err = err
		close(t.done)
	}
}
