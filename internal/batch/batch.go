// Package batch lets many goroutines share requests: each submits an item and waits
// for the item's own result, while a few flushers carry out what has gathered.
//
// Batching is natural: there is no timer. An item is flushed at once while a flusher
// is free; while all are busy items gather, and the next free flusher takes them
// together. So nothing waits for company, and batches grow with the load.
package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
)

var (
	// ErrClosed is returned by Do after Close; the item was not flushed.
	ErrClosed = errors.New("batcher closed")
	// ErrAbandoned is returned by Do when its context ended while the item was being
	// flushed: whether that will succeed is not known, and the item may be read until it has.
	ErrAbandoned = errors.New("given up while being flushed")
)

// Batcher gathers items of T. Its methods may be called concurrently.
type Batcher[T any] struct {
	flush    func(items []T, errs []error)
	max      int
	flushers int

	mu      sync.Mutex // guards what follows
	waiting []*call[T]
	running int
	closed  bool

	idle sync.WaitGroup // the running flushers
	free sync.Pool      // of *call[T]
	bags sync.Pool      // of *scratch[T]
}

// call is one Do.
type call[T any] struct {
	item T
	done chan error // with room for the result, so that no flusher waits for a waiter
}

// New makes a Batcher that calls flush with 1 to max items, in the order in which they
// were submitted, in up to flushers goroutines at once; they exist only while there is something to
// do. flush sets errs[i], nil at first, to the result of items[i]. It keeps neither slice.
// How long it may take is its own business.
func New[T any](flushers, max int, flush func(items []T, errs []error)) *Batcher[T] {
	b := &Batcher[T]{flush: flush, max: max, flushers: flushers}
	b.free.New = func() any { return &call[T]{done: make(chan error, 1)} }
	b.bags.New = func() any { return new(scratch[T]) }
	return b
}

// Do submits item and returns its result. When ctx ends before the item's turn it is
// taken back and ctx's error returned; when it ends later, the error is
// ErrAbandoned. Neither touches other items.
func (b *Batcher[T]) Do(ctx context.Context, item T) error {
	c := b.free.Get().(*call[T]) //nolint:errcheck // nothing else is in the pool
	c.item = item
	if err := b.submit(c); err != nil {
		b.recycle(c)
		return err
	}
	select {
	case err := <-c.done:
		b.recycle(c)
		return err
	case <-ctx.Done():
	}
	if b.takeBack(c) {
		b.recycle(c)
		return context.Cause(ctx)
	}
	select {
	case err := <-c.done:
		b.recycle(c)
		return err
	default:
		return ErrAbandoned // the flusher still has c: it is left to the collector
	}
}

// Close lets what was submitted be flushed and waits for it. A second Close waits too.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.idle.Wait()
}

func (b *Batcher[T]) submit(c *call[T]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.waiting = append(b.waiting, c)
	if b.running < b.flushers {
		b.running++
		b.idle.Go(b.run)
	}
	return nil
}

func (b *Batcher[T]) takeBack(c *call[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, c)
	if i < 0 {
		return false
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	return true
}

func (b *Batcher[T]) recycle(c *call[T]) {
	var none T
	c.item = none
	b.free.Put(c)
}

// run flushes until nothing waits.
func (b *Batcher[T]) run() {
	s := b.bags.Get().(*scratch[T]) //nolint:errcheck // nothing else is in the pool
	defer b.bags.Put(s)
	for b.take(s) {
		b.flush(s.items, s.errs)
		s.deliver()
	}
}

// take moves the calls whose turn it is into s, or ends this flusher when there
// are none.
func (b *Batcher[T]) take(s *scratch[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.waiting), b.max)
	if n == 0 {
		b.running--
		return false
	}
	for _, c := range b.waiting[:n] {
		s.calls = append(s.calls, c)
		s.items = append(s.items, c.item)
		s.errs = append(s.errs, nil)
	}
	b.waiting = slices.Delete(b.waiting, 0, n)
	return true
}

// scratch is what a flusher works with.
type scratch[T any] struct {
	calls []*call[T]
	items []T
	errs  []error
}

// deliver hands the results out and empties s. Who gets one may use its call again at
// once, so none is looked at afterwards.
func (s *scratch[T]) deliver() {
	for i, c := range s.calls {
		c.done <- s.errs[i]
	}
	clear(s.calls)
	clear(s.items)
	clear(s.errs)
	s.calls, s.items, s.errs = s.calls[:0], s.items[:0], s.errs[:0]
}
