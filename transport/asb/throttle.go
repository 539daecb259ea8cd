package asb

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// The service advises to wait for 2 s, and in its text of error 50009 for 10 s:
	// https://learn.microsoft.com/azure/service-bus-messaging/service-bus-throttling
	throttleMin = 4 * time.Second // a pause is half of it at least
	throttleMax = 10 * time.Second
	// receiveAccepted is the time after which a receive in flight counts as accepted by the
	// service.
	receiveAccepted = time.Second
)

// throttle spaces the requests of a connection while the service refuses them because the namespace
// is throttled. After a refusal one request is made after each pause, until one succeeds.
type throttle struct {
	mu      sync.Mutex // guards the fields below
	state   throttleState
	age     int           // counts changes of state
	until   time.Time     // end of the pause
	changed chan struct{} // closed with the next change of state
	pace    backoff.Backoff
}

func newThrottle() *throttle {
	return &throttle{changed: make(chan struct{}), pace: backoff.Backoff{Min: throttleMin, Max: throttleMax}}
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
}

// try returns a turn if the throttle permits a request now.
func (t *throttle) try() (turn, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state == paused && !time.Now().Before(t.until) {
		t.become(probing)
		return turn{t, t.age, true}, true
	}
	return turn{t, t.age, false}, t.state == free
}

// wait returns a turn as soon as there is one. It fails with the cause of ctx.
func (t *throttle) wait(ctx context.Context) (turn, error) {
	for {
		if own, ok := t.try(); ok {
			return own, nil
		}
		t.mu.Lock()
		changed, pause := t.changed, time.Until(t.until)
		if t.state == probing {
			pause = math.MaxInt64
		}
		t.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(pause):
		case <-ctx.Done():
			return turn{}, context.Cause(ctx)
		}
	}
}

// end records the outcome of a turn's request. After the first call for a probe, others have no
// effect.
func (own turn) end(err error) {
	busy := errors.Is(plain(err), errBusy)
	if !own.probe && !busy {
		return
	}
	t := own.of
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case own.age != t.age: // the request was made before the last change
	case busy:
		t.until = time.Now().Add(t.pace.Next())
		t.become(paused)
	case err != nil && !answered(err):
		t.until = time.Now().Add(denialPause) // the error says nothing about the throttling
		t.become(paused)
	default:
		t.pace.Reset()
		t.become(free)
	}
}

// become changes the state. Called with mu held.
func (t *throttle) become(state throttleState) {
	t.state = state
	t.age++
	close(t.changed)
	t.changed = make(chan struct{})
}
