package rabbitmq

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// maxUnanswered is the number of abandoned publishes without an answer from which on a destination is silent.
	maxUnanswered = 100
	// maxAbandoned is how many abandoned publishes of all destinations have no place in the window.
	maxAbandoned = 10_000
	// trialEvery is the time between two publishes to a silent destination. An answer may have been lost with a replica of
	// a queue.
	trialEvery = 5 * time.Minute
)

// unanswered counts the abandoned publishes of a connection by destination: the broker has not answered them, and the
// callers have stopped to wait. The zero value has none. It is safe for concurrent use.
//
// The window has the publishes that callers wait for, hence a destination that does not answer fills it for no longer
// than its callers wait. An abandoned publish gives its place back. A destination is silent from the abandoned publish on
// that makes maxUnanswered, until the broker answers any publish to it; nothing but a trial is sent there meanwhile. A
// destination has fewer abandoned publishes than maxUnanswered and the window together, and a trial each trialEvery.
type unanswered struct {
	some atomic.Bool // whether there is any; false costs a publish no lock

	mu           sync.Mutex // guards the rest
	total        int
	destinations map[route]*silence // those with abandoned publishes
}

// silence is what is known of a destination with abandoned publishes.
type silence struct {
	count int
	since time.Time // of the last answer, or of the first abandoned publish
	trial time.Time // when the next publish is let through; zero while the destination is not silent
}

// destination returns the part of a route for which answers come: a queue, or an exchange with the key of a publish. A
// delayed message waits in the queue of its level, and the rest of its key is no destination.
func (r route) destination() route {
	if r.exchange == "" {
		return r
	}
	return r.place()
}

// refuse returns a [transport.BusyError] if the destination of a route is silent.
func (u *unanswered) refuse(to route) error {
	if !u.some.Load() {
		return nil
	}
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.destinations[to]
	if s == nil || s.trial.IsZero() {
		return nil
	}
	now := time.Now()
	if !now.Before(s.trial) {
		s.trial = now.Add(trialEvery)
		return nil
	}
	queue := to.key
	if to.exchange != "" {
		queue = to.exchange
	}
	return &transport.BusyError{Queue: queue, Reason: fmt.Sprintf("the broker has not confirmed %d messages for it, and no other in %v",
		s.count, now.Sub(s.since).Round(time.Second))}
}

// add counts a publish that its caller has abandoned. It reports whether the publish gives its place in the window back.
func (u *unanswered) add(to route) bool {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.destinations[to]
	if s == nil {
		s = &silence{since: time.Now()}
		if u.destinations == nil {
			u.destinations = make(map[route]*silence)
		}
		u.destinations[to] = s
		u.some.Store(true)
	}
	s.count++
	u.total++
	if s.count >= maxUnanswered && s.trial.IsZero() {
		s.trial = time.Now().Add(trialEvery)
	}
	return u.total <= maxAbandoned
}

// remove forgets an abandoned publish.
func (u *unanswered) remove(to route) {
	to = to.destination()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.total--
	s := u.destinations[to]
	if s.count--; s.count > 0 {
		return
	}
	if delete(u.destinations, to); len(u.destinations) == 0 {
		u.destinations = nil // a map does not shrink
		u.some.Store(false)
	}
}

// answered notes that the broker has answered a publish.
func (u *unanswered) answered(to route) {
	if !u.some.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.destinations[to.destination()]; s != nil {
		s.since, s.trial = time.Now(), time.Time{}
	}
}
