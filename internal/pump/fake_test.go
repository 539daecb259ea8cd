package pump

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// delivery is a message that counts how it was settled.
type delivery struct {
	n         int
	size      int // of the body
	completed atomic.Int32
	released  atomic.Int32
	release   func(ctx context.Context) error // nil: works at once
}

// empty is the message of deliveries without a size: benchmarks count what the pump allocates.
var empty transport.Message

func (d *delivery) Message() *transport.Message {
	if d.size == 0 {
		return &empty
	}
	return &transport.Message{Body: make([]byte, d.size)}
}
func (d *delivery) Attempt() transport.Attempt     { return transport.Attempt{N: 1, Exact: true} }
func (d *delivery) Retry(context.Context) error    { return nil }
func (d *delivery) Complete(context.Context) error { d.completed.Add(1); return nil }
func (d *delivery) Release(ctx context.Context) error {
	d.released.Add(1)
	if d.release != nil {
		return d.release(ctx)
	}
	return nil
}

// receiver delivers the messages that were put into it.
type receiver struct {
	trip   time.Duration                                       // duration of a Receive that finds messages
	before func(limit int) ([]transport.Delivery, error, bool) // answers instead of the queue when true

	mu      sync.Mutex
	queue   []*delivery
	more    chan struct{} // closed when something is put
	limits  []int
	windows []int
	calls   int // running now
	most    int
	onEnd   func() []transport.Delivery // what a Receive still returns when its ctx ends
}

func newReceiver() *receiver { return &receiver{more: make(chan struct{})} }

// put adds n messages and returns them.
func (r *receiver) put(n int) []*delivery { return r.putSizes(make([]int, n)...) }

// putSizes adds messages with bodies of these sizes.
func (r *receiver) putSizes(sizes ...int) []*delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	ds := make([]*delivery, len(sizes))
	for i, size := range sizes {
		ds[i] = &delivery{n: i, size: size}
	}
	r.queue = append(r.queue, ds...)
	close(r.more)
	r.more = make(chan struct{})
	return ds
}

func (r *receiver) Receive(ctx context.Context, limit int) ([]transport.Delivery, error) {
	r.enter(limit)
	defer r.leave()
	if r.before != nil {
		if ds, err, answered := r.before(limit); answered {
			return ds, err
		}
	}
	for {
		ds, more := r.take(limit)
		if len(ds) > 0 {
			if r.trip > 0 {
				<-time.After(r.trip)
			}
			return ds, nil
		}
		select {
		case <-ctx.Done():
			if r.onEnd != nil {
				return r.onEnd(), nil
			}
			return nil, ctx.Err()
		case <-more:
		}
	}
}

func (r *receiver) enter(limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limits = append(r.limits, limit)
	r.calls++
	r.most = max(r.most, r.calls)
}

func (r *receiver) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
}

func (r *receiver) take(limit int) ([]transport.Delivery, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(limit, len(r.queue))
	ds := make([]transport.Delivery, n)
	for i, d := range r.queue[:n] {
		ds[i] = d
	}
	r.queue = r.queue[n:]
	return ds, r.more
}

func (r *receiver) running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// mostCalls is how many ever ran at once.
func (r *receiver) mostCalls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

func (r *receiver) left() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

func (r *receiver) Window(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows = append(r.windows, n)
}

func (r *receiver) Close() error { return nil }

// byteReceiver is a receiver that bounds a Receive by size.
type byteReceiver struct {
	*receiver
	bounds list[int64]
}

func (r *byteReceiver) ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]transport.Delivery, error) {
	r.bounds.add(maxBytes)
	r.mu.Lock()
	n, bytes := 0, int64(0)
	for _, d := range r.queue {
		if bytes += int64(d.size); n > 0 && bytes > maxBytes {
			break
		}
		n++
	}
	r.mu.Unlock()
	return r.Receive(ctx, max(1, min(limit, n)))
}

// leaser is a receiver whose deliveries are leased.
type leaser struct {
	*receiver
	renew func(ctx context.Context, ds []transport.Delivery) []error // nil: works at once

	renewals map[transport.Delivery][]time.Time
	sizes    []int
}

func newLeaser() *leaser {
	return &leaser{receiver: newReceiver(), renewals: map[transport.Delivery][]time.Time{}}
}

func (l *leaser) Renew(ctx context.Context, ds []transport.Delivery) []error {
	l.mu.Lock()
	l.sizes = append(l.sizes, len(ds))
	for _, d := range ds {
		l.renewals[d] = append(l.renewals[d], time.Now())
	}
	l.mu.Unlock()
	if l.renew != nil {
		return l.renew(ctx, ds)
	}
	return make([]error, len(ds))
}

func (l *leaser) renewed(d transport.Delivery) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewals[d]
}

// list collects values of several goroutines.
type list[T any] struct {
	mu    sync.Mutex
	items []T
}

func (l *list[T]) add(item T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items = append(l.items, item)
}

func (l *list[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

// started is a pump that runs in a bubble of synctest.
type started struct {
	*Pump
	stop func()        // ends Run's context
	over chan struct{} // closed when Run has returned
}

// start runs a pump until the test ends or calls stop.
func start(t *testing.T, cfg Config) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &started{Pump: New(cfg), stop: cancel, over: make(chan struct{})}
	go func() {
		defer close(s.over)
		s.Run(ctx)
	}()
	synctest.Wait()
	return s
}

// end stops the pump and waits for it.
func (s *started) end() {
	s.stop()
	<-s.over
}

// ended reports whether Run has returned.
func (s *started) ended() bool {
	synctest.Wait()
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// wantStats fails the test when the pump does not hold this.
func (s *started) wantStats(t *testing.T, want Stats) {
	t.Helper()
	synctest.Wait()
	if got := s.Stats(); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

// bubble runs a test with a clock of its own; a goroutine left behind fails it.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// pass waits for d to go by and for everything to come to rest.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
