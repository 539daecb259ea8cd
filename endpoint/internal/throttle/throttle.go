// Package throttle limits the attempts at messages after failures in a row: one message has the turn, and
// it alone is attempted.
package throttle

import (
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Limits are the limits of an endpoint: one for all messages, or one for each type. The zero value has none.
type Limits struct {
	all    *Limit
	byType map[string]*Limit
}

// New returns the limits that the configuration asks for, for messages of the types.
func New(c recoverability.RateLimit, types []string) Limits {
	switch {
	case c.After <= 0:
		return Limits{}
	case c.Scope != recoverability.ByType:
		return Limits{all: newLimit(c, "")}
	}
	l := Limits{byType: make(map[string]*Limit, len(types))}
	for _, name := range types {
		l.byType[name] = newLimit(c, name)
	}
	return l
}

// Of returns the limit of a message, or nil. typeOf returns the message's type, and is called only if that matters.
func (l *Limits) Of(typeOf func() string) *Limit {
	if l.byType == nil {
		return l.all
	}
	return l.byType[typeOf()]
}

// Each calls f with every limit in force: since when it is, and after how many failures in a row.
func (l *Limits) Each(f func(l *Limit, since time.Time, failures int)) {
	inForce := func(l *Limit) {
		if since, failures := l.state(); !since.IsZero() {
			f(l, since, failures)
		}
	}
	if l.all != nil {
		inForce(l.all)
	}
	for _, one := range l.byType {
		inForce(one)
	}
}

// Limit is the limit of an endpoint, or of a type of messages. It is safe for concurrent use.
type Limit struct {
	Type string // "" is the endpoint's

	mu      sync.Mutex // guards the rest
	limiter fault.Limiter
	turn    *Turn         // of the message that has the turn; nil when it is free
	changed chan struct{} // closed when the turn is free again, or the limit over

	reporting sync.Mutex // held while a change is reported, so that reports are in order
	reported  time.Time  // since when attempts are limited, as last reported
}

func newLimit(c recoverability.RateLimit, name string) *Limit {
	return &Limit{Type: name, limiter: fault.Limiter{RateLimit: c}, changed: make(chan struct{})}
}

// Blocked is the wait of a message while another has the turn.
const Blocked time.Duration = math.MaxInt64

// Turn is a message's claim to the turn, for all attempts at one delivery.
type Turn struct {
	// Tries counts the failures while attempts were limited.
	Tries int
	// Failures are those, and the ones of earlier deliveries. They are set once Tries > 0.
	Failures fault.Throttled
}

// Wait returns how long a message has to wait before its attempt. It takes the turn if that is free, and returns
// [Blocked] if it is not. changed is closed when the answer may be another.
func (l *Limit) Wait(t *Turn) (wait time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch since, _ := l.limiter.Limited(); {
	case since.IsZero():
		return 0, nil
	case l.turn == nil:
		l.turn = t
	case l.turn != t:
		return Blocked, l.changed
	}
	return l.limiter.Until(time.Now()), l.changed
}

// Pass frees the turn, if t has it.
func (l *Limit) Pass(t *Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.turn == t {
		l.free()
	}
}

// free frees the turn and wakes the messages that wait. Called with mu held.
func (l *Limit) free() {
	l.turn = nil
	close(l.changed)
	l.changed = make(chan struct{})
}

// Failed records a failure of the message with that id, and reports whether attempts are limited.
func (l *Limit) Failed(id string) (limited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.Failed(id, time.Now())
}

// Succeeded records a success, and reports whether it ended the limit.
func (l *Limit) Succeeded() (ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended = l.limiter.Succeeded(); ended {
		l.free()
	}
	return ended
}

// Exhausted counts a failure while attempts are limited. It reports whether the message has failed as often, or for as
// long, as the configuration allows. earlier returns the failures of earlier deliveries, and is called for the first.
func (l *Limit) Exhausted(t *Turn, now time.Time, earlier func(now time.Time) fault.Throttled) bool {
	if t.Tries == 0 {
		t.Failures = earlier(now)
	}
	t.Tries++
	t.Failures = t.Failures.Add(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.Exhausted(t.Failures, now)
}

// Deferral returns for how long to postpone a message.
func (l *Limit) Deferral() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.Deferral(time.Now())
}

// Report calls f if the limit has begun, ended or begun anew since the last call: with the time since which attempts
// are limited, zero for never, before and now. It calls f once at a time.
func (l *Limit) Report(f func(before, since time.Time, failures int)) {
	l.reporting.Lock()
	defer l.reporting.Unlock()
	since, failures := l.state()
	if before := l.reported; !since.Equal(before) {
		l.reported = since
		f(before, since, failures)
	}
}

func (l *Limit) state() (since time.Time, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limiter.Limited()
}
