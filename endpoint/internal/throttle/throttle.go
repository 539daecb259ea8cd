// Package throttle limits the attempts at messages after failures in a row: one message has the
// turn, and it alone is attempted.
package throttle

import (
	"cmp"
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

// Limits are the limits of an endpoint: one for all messages, or one for each type. The zero value
// has none.
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

// Any reports whether messages of some type are limited.
func (l *Limits) Any() bool { return l.all != nil || len(l.byType) > 0 }

// Of returns the limit of a message, or nil. typeOf returns the message's type, and is called only
// if that matters.
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
	Type   string // "" is the endpoint's
	config recoverability.RateLimit

	mu       sync.Mutex    // guards the rest
	failures int           // in a row
	id       string        // of the first message that failed
	several  bool          // others have failed
	first    time.Time     // when the first failed
	since    time.Time     // when the limit began; zero without a limit
	next     time.Time     // when the next attempt may begin
	turn     *Turn         // of the message that has the turn; nil when it is free
	changed  chan struct{} // closed when the turn is free again, or the limit over

	reporting sync.Mutex // held while a change is reported, so that reports are in order
	reported  time.Time  // since when attempts are limited, as last reported
}

func newLimit(c recoverability.RateLimit, name string) *Limit {
	c.Delay = cmp.Or(c.Delay, recoverability.DefaultRateLimitDelay)
	c.MaxFailures = cmp.Or(c.MaxFailures, recoverability.DefaultRateLimitMaxFailures)
	c.MaxTime = cmp.Or(c.MaxTime, recoverability.DefaultRateLimitMaxTime)
	return &Limit{Type: name, config: c, changed: make(chan struct{})}
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

// Wait returns how long a message has to wait before its attempt. It takes the turn if that is
// free, and returns [Blocked] if it is not. changed is closed when the answer may be another.
func (l *Limit) Wait(t *Turn, now time.Time) (wait time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.since.IsZero():
		return 0, nil
	case l.turn == nil:
		l.turn = t
	case l.turn != t:
		return Blocked, l.changed
	}
	return max(0, l.next.Sub(now)), l.changed
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

// Failed counts a failure of the message with an id. It reports whether attempts were limited
// before, so that the failure uses up no retry.
func (l *Limit) Failed(id string, now time.Time) (limited bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == 0 {
		l.id, l.first = id, now
	}
	l.several = l.several || id != l.id
	l.failures++
	limited = !l.since.IsZero()
	lasting := l.several || now.Sub(l.first) > l.config.Delay
	if !limited && lasting && l.failures >= l.config.After {
		l.since = now
	}
	l.next = now.Add(l.config.Delay)
	return limited
}

// Succeeded ends the limit after a success. It reports whether there was one.
func (l *Limit) Succeeded() (ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended = !l.since.IsZero()
	l.failures, l.several, l.since = 0, false, time.Time{}
	if ended {
		l.free()
	}
	return ended
}

// Exhausted counts a failure while attempts are limited. It reports whether the message has failed
// as often, or for as long, as the configuration allows. earlier returns the failures of earlier
// deliveries, and is called for the first.
func (l *Limit) Exhausted(t *Turn, now time.Time, earlier func(now time.Time) fault.Throttled) bool {
	if t.Tries == 0 {
		t.Failures = earlier(now)
	}
	t.Tries++
	t.Failures = t.Failures.Add(now)
	return t.Failures.Failures >= l.config.MaxFailures || now.Sub(t.Failures.Since) >= l.config.MaxTime
}

// maxDeferral bounds the delay of a postponed message.
const maxDeferral = 5 * time.Minute

// Deferral returns for how long to postpone a message: for Delay, or a quarter of the outage up to
// 5 minutes, whichever is longer. So the queue does not go round and round in a long outage.
func (l *Limit) Deferral(now time.Time) time.Duration {
	since, _ := l.state()
	if since.IsZero() {
		return l.config.Delay
	}
	return max(l.config.Delay, min(now.Sub(since)/4, maxDeferral))
}

// Report calls f if the limit has begun, ended or begun anew since the last call: with the time
// since which attempts are limited, zero for never, before and now. It calls f once at a time.
func (l *Limit) Report(f func(before, since time.Time, failures int)) {
	l.reporting.Lock()
	defer l.reporting.Unlock()
	since, failures := l.state()
	if before := l.reported; !since.Equal(before) {
		l.reported = since
		f(before, since, failures)
	}
}

// state returns since when attempts are limited, zero if they are not, and the number of failures
// in a row.
func (l *Limit) state() (since time.Time, failures int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.failures
}
