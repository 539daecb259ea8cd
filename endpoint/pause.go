package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Pause stops receiving from the endpoint's queues, or from those named, and returns when nothing
// of them is in hand any more: handlers may finish, and their context is cancelled when StopTimeout
// has passed, as at the end of Run. What was not started by then, or was cut short, is back in its queue: at once where
// that does not count as an attempt; else what was received already is begun in the first half of StopTimeout.
// [Endpoint.Resume] ends it; what comes meanwhile waits at the broker. Pausing again does nothing.
//
// A paused endpoint sends as before, and is not ready: [Endpoint.Health] says why. Other
// instances go on. The driver's own queues are worked on all the same.
//
// When ctx ends first the pause goes on without the caller. A handler that calls Pause has to do
// so with a ctx that ends, or in a goroutine of its own: it would wait for itself. Pause returns
// [ErrNotRunning] before Run is ready and once its context has ended.
func (e *Endpoint) Pause(ctx context.Context, queues ...string) error {
	return e.order(ctx, true, queues)
}

// Resume receives again from the endpoint's queues, or from those named, with the concurrency set
// last. It returns when it does; where the broker refuses, the queue stays paused. Resuming what is
// not paused does nothing. It returns [ErrNotRunning] as Pause does.
func (e *Endpoint) Resume(ctx context.Context, queues ...string) error {
	return e.order(ctx, false, queues)
}

// SetConcurrency changes how many messages are handled at once, of each of the endpoint's queues;
// n is from 1 to 65,536. More start at once; fewer are handled as those that are running finish. It returns
// [ErrNotRunning] before Run is ready, and the next Run of such an endpoint begins with
// [Config].Concurrency again.
func (e *Endpoint) SetConcurrency(n int) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("set concurrency to %d: it must be from 1 to %d", n, maxConcurrency)
	}
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	for _, l := range live.lanes {
		l.resize(func() { l.concurrency = n })
	}
	return nil
}

// order has the lanes of queues, or all of the endpoint's own, paused or go on.
func (e *Endpoint) order(ctx context.Context, pause bool, queues []string) error {
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	lanes, err := live.named(queues)
	if err != nil {
		return err
	}
	errs := make([]error, len(lanes))
	var all sync.WaitGroup
	for i, l := range lanes {
		all.Go(func() { errs[i] = live.order(ctx, l, pause) })
	}
	all.Wait()
	if err := errors.Join(errs...); !errors.Is(err, ErrNotRunning) {
		return err
	}
	return ErrNotRunning
}

// order has l paused or go on, and waits until it is so.
func (l *live) order(ctx context.Context, to *lane, pause bool) error {
	o := order{pause, make(chan error, 1)}
	select {
	case to.orders <- o:
	case <-l.stopping:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-o.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receivesFrom reports whether the queue is one that the endpoint receives from, a queue of the driver included.
func (l *live) receivesFrom(queue string) bool {
	is := func(l *lane) bool { return l.queue == queue }
	return slices.ContainsFunc(l.lanes, is) || slices.ContainsFunc(l.satellites.all(), is)
}

// named are the lanes of queues; of all that are the endpoint's own when there are none.
func (l *live) named(queues []string) ([]*lane, error) {
	for _, queue := range queues {
		if !slices.ContainsFunc(l.lanes, func(l *lane) bool { return l.queue == queue }) {
			return nil, fmt.Errorf("queue %q: the endpoint does not receive from it", queue)
		}
	}
	if len(queues) == 0 {
		return l.lanes, nil
	}
	return slices.DeleteFunc(slices.Clone(l.lanes), func(l *lane) bool { return !slices.Contains(queues, l.queue) }), nil
}
