package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/pump"
)

// Pause stops receiving from all queues of the endpoint, or from those named, and returns when
// every received message is settled or released. Handlers may finish; after StopTimeout their
// context is cancelled, as at the end of Run. Messages that no handler has begun return to the
// queue. Where a release counts as an attempt, they are begun in the first half of StopTimeout
// instead. Messages that arrive meanwhile wait at the broker until [Endpoint.Resume]. Pausing a
// paused queue does nothing.
//
// A paused endpoint can send. It is not ready: [Endpoint.Health] gives the reason. Other instances,
// and the queues of the driver itself, are not paused.
//
// When ctx ends first, Pause returns and the pause continues. A handler that calls Pause must use a
// ctx that ends, or a goroutine: otherwise it waits for itself. Pause returns [ErrNotRunning]
// before Run is ready and after Run's context has ended.
func (e *Endpoint) Pause(ctx context.Context, queues ...string) error {
	return e.control(queues, func(s source) error { return s.Pause(ctx) })
}

// Resume receives again from all queues of the endpoint, or from those named, with the concurrency
// set last. It returns when receiving has begun; where the broker refuses, the queue stays paused.
// Resuming a queue that is not paused does nothing. Resume returns [ErrNotRunning] as
// [Endpoint.Pause] does.
func (e *Endpoint) Resume(ctx context.Context, queues ...string) error {
	return e.control(queues, func(s source) error { return s.Resume(ctx) })
}

// SetConcurrency changes how many messages are handled at once, of each queue of the endpoint; n is
// from 1 to 65,536. More messages start at once; a lower number takes effect as handlers finish.
// SetConcurrency returns [ErrNotRunning] before Run is ready. It does not change
// [Config].Concurrency.
func (e *Endpoint) SetConcurrency(n int) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("set concurrency to %d: it must be from 1 to %d", n, maxConcurrency)
	}
	return e.control(nil, func(s source) error { s.SetConcurrency(n); return nil })
}

// control calls act for the sources of queues, or for all, side by side.
func (e *Endpoint) control(queues []string, act func(source) error) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	sources, err := live.named(queues)
	if err != nil {
		return err
	}
	errs := make([]error, len(sources))
	var all sync.WaitGroup
	for i, s := range sources {
		all.Go(func() { errs[i] = act(s) })
	}
	all.Wait()
	if err := errors.Join(errs...); !errors.Is(err, pump.ErrEnded) {
		return err
	}
	return ErrNotRunning
}

// receivesFrom reports whether the endpoint receives from the queue with that short name; the
// driver's own queues are included.
func (l *live) receivesFrom(queue string) bool {
	is := func(s source) bool { return l.names.Of(s.Queue()) == queue }
	return slices.ContainsFunc(l.sources, is) || slices.ContainsFunc(l.satellites.all(), is)
}

// named returns the sources of queues, or all of the endpoint's own if there are no names.
func (l *live) named(queues []string) ([]source, error) {
	queues = slices.Clone(queues)
	for i, queue := range queues {
		queue = l.names.Of(queue)
		queues[i] = queue
		if !slices.ContainsFunc(l.sources, func(s source) bool { return s.Queue() == queue }) {
			return nil, fmt.Errorf("queue %q: the endpoint does not receive from it", queue)
		}
	}
	if len(queues) == 0 {
		return l.sources, nil
	}
	return slices.DeleteFunc(slices.Clone(l.sources), func(s source) bool { return !slices.Contains(queues, s.Queue()) }), nil
}
