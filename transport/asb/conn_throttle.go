package asb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// The service advises to wait for 2 s, and in its text of error 50009 for 10 s:
	// https://learn.microsoft.com/azure/service-bus-messaging/service-bus-throttling
	throttleMin = 4 * time.Second // a pause is half of it at least
	throttleMax = 10 * time.Second
	// receiveAccepted is the time after which a receive in flight counts as accepted by the service.
	receiveAccepted = time.Second
)

// throttle spaces the requests of a connection while the service refuses them because the namespace is throttled. After
// a refusal one request is made after each pause, until one succeeds.
type throttle struct {
	mu      sync.Mutex // guards the fields below
	state   throttleState
	age     int           // counts changes from free to paused
	until   time.Time     // end of the pause
	changed chan struct{} // closed with the next change of state
	pace    backoff.Backoff
}

func newThrottle() *throttle {
	return &throttle{pace: backoff.Backoff{Min: throttleMin, Max: throttleMax}}
}

// throttleState is the requests that a throttle permits.
type throttleState int

const (
	free    throttleState = iota // all
	paused                       // none until the end of the pause, then one
	probing                      // none: that one is in flight
)

// turn is the permission to make a request.
type turn struct {
	of    *throttle
	age   int
	probe bool
	once  *sync.Once // nil unless it is a probe
}

// try returns a turn if the throttle permits a request now.
func (t *throttle) try() (turn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tryLocked(time.Now())
}

func (t *throttle) tryLocked(now time.Time) (turn, bool) {
	switch {
	case t.state == free:
		return turn{of: t, age: t.age}, true
	case t.state == paused && !now.Before(t.until):
		t.become(probing)
		return turn{of: t, age: t.age, probe: true, once: new(sync.Once)}, true
	}
	return turn{}, false
}

// wait returns a turn as soon as there is one. It fails with the cause of ctx.
func (t *throttle) wait(ctx context.Context) (turn, error) {
	for {
		t.mu.Lock()
		now := time.Now()
		own, ok := t.tryLocked(now)
		changed, pause := t.changed, t.until.Sub(now)
		probing := t.state == probing
		t.mu.Unlock()
		if ok {
			return own, nil
		}
		if err := waitFor(ctx, changed, pause, probing); err != nil {
			return turn{}, err
		}
	}
}

// waitFor waits for a change of state, or for the end of the pause.
func waitFor(ctx context.Context, changed <-chan struct{}, pause time.Duration, probing bool) error {
	var over <-chan time.Time
	if !probing {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-changed:
	case <-over:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// end records the outcome of a turn's request.
func (own turn) end(err error) {
	if own.once == nil {
		own.take(err)
		return
	}
	own.once.Do(func() { own.take(err) })
}

func (own turn) take(err error) {
	busy := errors.Is(plain(err), errBusy)
	if !own.probe && !busy {
		return
	}
	t := own.of
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case own.age != t.age: // the request was made before the last change
	case busy && (own.probe || t.state == free):
		t.age++
		t.until = time.Now().Add(t.pace.Next())
		t.become(paused)
	case own.probe && err != nil && !answered(err):
		t.until = time.Now().Add(denialPause) // the error says nothing about the throttling
		t.become(paused)
	case own.probe:
		t.pace.Reset()
		t.become(free)
	}
}

// become changes the state. Called with mu held.
func (t *throttle) become(state throttleState) {
	t.state = state
	if t.changed != nil {
		close(t.changed)
	}
	t.changed = make(chan struct{})
}
