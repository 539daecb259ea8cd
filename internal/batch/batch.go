// Package batch lets many goroutines share requests: each submits items and waits for their
// results, while a few flushers carry out batches of the submitted items.
//
// Without Config.Linger no item waits for others: it is flushed at once while a flusher is free.
// While all flushers are busy items accumulate, and the next free flusher takes them together, so
// batches grow with the load. With Linger a batch that is not full waits that long for more items,
// which saves requests that are paid for one by one.
package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

var (
	// ErrClosed is the result of an item submitted after Close. The item was not flushed.
	ErrClosed = errors.New("batcher closed")
	// ErrAbandoned is returned when the caller's context ended while the item was being flushed.
	// The result of the flush is unknown, and the flush may still read the item.
	ErrAbandoned = errors.New("abandoned while being flushed")
)

// Config configures a [Batcher]. Flush, Flushers and MaxItems are required.
type Config[T any] struct {
	// Flush carries out 1 to MaxItems items, in the order of their submission, and sets errs[i],
	// which is nil, to the result of items[i]. It must not keep the slices. Up to Flushers
	// goroutines call it at once.
	Flush    func(items []T, errs []error)
	Flushers int
	MaxItems int

	// Weight returns the weight of an item. A batch of several items weighs MaxWeight at most. nil:
	// items have no weight.
	Weight    func(T) int
	MaxWeight int

	// Linger is how long a batch that is not full waits for more items. 0: batches do not wait.
	Linger time.Duration
	// NoneExpected reports whether no more items are to be expected, so that waiting for them is
	// useless. It must not call the batcher. nil: none are expected while no flusher runs and the
	// last batch had one item, during whose flush no other came.
	NoneExpected func() bool

	// Start runs a flusher in a goroutine, or returns false when it cannot: then the items that
	// wait fail with ErrClosed. nil: a new goroutine, which Close waits for.
	Start func(flusher func()) bool
}

// Batcher collects items of T into batches. It is safe for concurrent use.
type Batcher[T any] struct {
	cfg  Config[T]
	loop func() // run, made once

	mu      sync.Mutex // guards the fields below
	waiting []*Pending[T]
	since   time.Time // start of the linger of the waiting items; zero: not started
	timer   *time.Timer
	single  bool // the last batch had one item, during whose flush no other came
	running int  // flushers
	closed  bool

	flushers  sync.WaitGroup
	pendings  sync.Pool // of *Pending[T]
	scratches sync.Pool // of *scratch[T]
}

// Pending is a submitted item.
type Pending[T any] struct {
	item   T
	weight int
	done   chan error // has room for the result, so that no flusher waits for a receiver
}

// Done returns a channel that receives the item's result, once.
func (p *Pending[T]) Done() <-chan error { return p.done }

// New returns a Batcher. Its flushers exist only while items wait.
func New[T any](cfg Config[T]) *Batcher[T] {
	b := &Batcher[T]{cfg: cfg, single: true}
	b.pendings.New = func() any { return &Pending[T]{done: make(chan error, 1)} }
	b.scratches.New = func() any { return new(scratch[T]) }
	b.loop = b.run
	if b.cfg.Start == nil {
		b.cfg.Start = func(flusher func()) bool { b.flushers.Go(flusher); return true }
	}
	return b
}

// Do submits an item and returns its result. When ctx ends before the item's batch is flushed, the
// item is withdrawn and ctx's cause returned; when it ends later, the error is ErrAbandoned. Other
// items are not affected.
func (b *Batcher[T]) Do(ctx context.Context, item T) error {
	return b.wait(ctx, b.Submit(item))
}

// DoAll submits items and returns their results, each as from Do. Items that do not fit in one
// batch are submitted in turn, so that none overtakes another.
func (b *Batcher[T]) DoAll(ctx context.Context, items []T) []error {
	all := make([]*Pending[T], len(items))
	for i, item := range items {
		all[i] = b.pending(item)
	}
	errs := make([]error, 0, len(items))
	for len(all) > 0 {
		n, _ := b.fit(all)
		b.submit(all[:n]...)
		for _, p := range all[:n] {
			errs = append(errs, b.wait(ctx, p))
		}
		all = all[n:]
	}
	return errs
}

// Submit submits an item whose result the caller receives from [Pending.Done].
func (b *Batcher[T]) Submit(item T) *Pending[T] {
	p := b.pending(item)
	b.submit(p)
	return p
}

// Withdraw removes an item that is not being flushed yet, and reports whether it did: then there is
// no result.
func (b *Batcher[T]) Withdraw(p *Pending[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, p)
	if i < 0 {
		return false
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	if len(b.waiting) == 0 {
		b.since = time.Time{}
	}
	return true
}

// Close flushes the waiting items and waits for the flushers that the batcher started itself. It is
// idempotent.
func (b *Batcher[T]) Close() {
	b.mu.Lock()
	b.closed = true
	b.wake()
	b.mu.Unlock()
	b.flushers.Wait()
}

func (b *Batcher[T]) pending(item T) *Pending[T] {
	p := b.pendings.Get().(*Pending[T]) //nolint:errcheck // the pool holds nothing else
	p.item = item
	if b.cfg.Weight != nil {
		p.weight = b.cfg.Weight(item)
	}
	return p
}

func (b *Batcher[T]) submit(ps ...*Pending[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		refuse(ps)
		return
	}
	b.waiting = append(b.waiting, ps...)
	b.wake()
}

func refuse[T any](ps []*Pending[T]) {
	for _, p := range ps {
		p.done <- ErrClosed
	}
}

func (b *Batcher[T]) wait(ctx context.Context, p *Pending[T]) error {
	var err error
	select {
	case err = <-p.done:
	case <-ctx.Done():
		if err = context.Cause(ctx); b.Withdraw(p) {
			break
		}
		select {
		case err = <-p.done:
		default:
			return ErrAbandoned // the flusher still uses p, so p is left to the garbage collector
		}
	}
	p.item = *new(T)
	b.pendings.Put(p)
	return err
}

// wake starts a flusher if one is free and a batch is ready. Called with mu held.
func (b *Batcher[T]) wake() {
	if b.running == b.cfg.Flushers || !b.ready(b.running) {
		return
	}
	b.running++
	if !b.cfg.Start(b.loop) {
		b.running--
		refuse(b.waiting)
		b.waiting = nil
	}
}

// ready reports whether a batch of the waiting items is to be flushed now. If they are to linger,
// it sets the timer. busy is the number of flushers that are flushing. Called with mu held.
func (b *Batcher[T]) ready(busy int) bool {
	if len(b.waiting) == 0 {
		return false
	}
	if b.cfg.Linger == 0 || b.closed {
		return true
	}
	over := !b.since.IsZero() && time.Since(b.since) >= b.cfg.Linger
	if _, full := b.fit(b.waiting); full || over {
		return true
	}
	noneExpected := b.single && busy == 0
	if b.cfg.NoneExpected != nil {
		noneExpected = b.cfg.NoneExpected()
	}
	if !noneExpected && b.since.IsZero() {
		b.linger()
	}
	return noneExpected
}

// linger starts the linger of the waiting items. Called with mu held.
func (b *Batcher[T]) linger() {
	b.since = time.Now()
	if b.timer != nil {
		b.timer.Reset(b.cfg.Linger)
		return
	}
	b.timer = time.AfterFunc(b.cfg.Linger, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.wake()
	})
}

// fit returns how many of ps the next batch has room for, and whether that is all it has room for.
func (b *Batcher[T]) fit(ps []*Pending[T]) (n int, full bool) {
	for weight := 0; n < len(ps) && n < b.cfg.MaxItems; n++ {
		if weight += ps[n].weight; n > 0 && b.cfg.Weight != nil && weight > b.cfg.MaxWeight {
			return n, true
		}
	}
	return n, n == b.cfg.MaxItems
}

// run flushes batches until none is ready.
func (b *Batcher[T]) run() {
	s := b.scratches.Get().(*scratch[T]) //nolint:errcheck // the pool holds nothing else
	defer b.scratches.Put(s)
	for b.take(s) {
		b.cfg.Flush(s.items, s.errs)
		if b.cfg.Linger > 0 {
			b.mu.Lock()
			b.single = len(s.items) == 1 && len(b.waiting) == 0
			b.mu.Unlock()
		}
		s.deliver()
	}
}

// take moves the next batch into s, or ends the flusher if no batch is ready.
func (b *Batcher[T]) take(s *scratch[T]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ready(b.running - 1) {
		b.running--
		return false
	}
	n, full := b.fit(b.waiting)
	for _, p := range b.waiting[:n] {
		s.pending = append(s.pending, p)
		s.items = append(s.items, p.item)
		s.errs = append(s.errs, nil)
	}
	b.waiting = slices.Delete(b.waiting, 0, n)
	if !full || len(b.waiting) == 0 {
		b.since = time.Time{}
	}
	b.wake()
	return true
}

// scratch holds the batch of a flusher.
type scratch[T any] struct {
	pending []*Pending[T]
	items   []T
	errs    []error
}

// deliver sends the results and empties s. A receiver may use its Pending again at once.
func (s *scratch[T]) deliver() {
	for i, p := range s.pending {
		p.done <- s.errs[i]
	}
	clear(s.pending)
	clear(s.items)
	clear(s.errs)
	s.pending, s.items, s.errs = s.pending[:0], s.items[:0], s.errs[:0]
}
