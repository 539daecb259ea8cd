package recoverability

import (
	"cmp"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Defaults of [RateLimit].
const (
	DefaultRateLimitWait        = 5 * time.Second
	DefaultRateLimitMaxFailures = 10
	DefaultRateLimitMaxTime     = 15 * time.Minute
)

// RateLimit is for outages of what handlers need, such as a database: after some failures in a row
// one message at a time is attempted, with a wait between attempts, until one succeeds. What is
// held back meanwhile loses none of its retries. The zero value is no limit.
//
// A failure that no other attempt can mend says nothing of an outage: an unrecoverable error, or
// one that a [Rule] with an Action is for. Nor do failures of one message alone within Wait, such as its
// immediate retries.
//
// An outage ends, a bad deployment or producer does not: so a message is not held back without end. After
// MaxFailures or MaxTime the policy decides about it as about one failure.
//
// Each process limits by what it sees itself.
type RateLimit struct {
	// After is how many failures in a row begin the limit; a success in between starts the count
	// again. 0 is never. Have it well over Config.Immediate, so that a few bad messages do
	// not reach it before a good one succeeds.
	After int
	// Wait is the time between attempts while limited: 5 s unless set.
	Wait time.Duration
	// MaxFailures is how often a message may fail while attempts are limited. The last of these failures goes to the
	// policy and uses up one retry, the others use up none; then the count begins again: 10 unless set.
	MaxFailures int
	// MaxTime does the same by time: a failure goes to the policy when the first one that used up no retry is at least
	// that long ago. 15 min unless set.
	MaxTime time.Duration
	// Scope is what is counted and limited together.
	Scope RateLimitScope
}

// RateLimitScope is what failures are counted for, and what they limit.
type RateLimitScope int

const (
	// ByEndpoint counts all messages of the endpoint, and limits all. It is the zero value.
	ByEndpoint RateLimitScope = iota
	// ByType counts and limits each type of messages by itself, so that the others go on.
	ByType
)

func (r RateLimit) validate(bad func(format string, args ...any)) {
	if r.After < 0 {
		bad("RateLimit.After is %d: use 0 for no limit", r.After)
	}
	if r.Wait < 0 {
		bad("RateLimit.Wait is negative: %v", r.Wait)
	}
	if r.MaxFailures < 0 {
		bad("RateLimit.MaxFailures is negative: %d", r.MaxFailures)
	}
	if r.MaxTime < 0 {
		bad("RateLimit.MaxTime is negative: %v", r.MaxTime)
	}
	if r.After <= 0 && (r.Wait != 0 || r.MaxFailures != 0 || r.MaxTime != 0 || r.Scope != ByEndpoint) {
		bad("RateLimit.After is not set, and without it there is no limit")
	}
	if r.Scope < ByEndpoint || r.Scope > ByType {
		bad("RateLimit.Scope is %d: use ByEndpoint or ByType", r.Scope)
	}
}

// Limiter is how a [RateLimit] stands in one scope. It is not safe for concurrent use. The clock
// is the caller's.
type Limiter struct {
	RateLimit

	failures int       // in a row
	id       string    // of the first message that failed
	several  bool      // others have
	first    time.Time // when the first of them was
	since    time.Time // when the limit began; zero where there is none
	next     time.Time // when the next attempt may be
}

// Limited is since when attempts are limited, zero when they are not, and how many
// failures there were in a row.
func (l *Limiter) Limited() (since time.Time, failures int) { return l.since, l.failures }

// Failed takes in a failure of the message with that id. It reports whether attempts were limited
// before, so that the failure uses up no retry.
func (l *Limiter) Failed(id string, now time.Time) (limited bool) {
	switch {
	case l.failures == 0:
		l.id, l.first = id, now
	case id != l.id:
		l.several = true
	}
	l.failures++
	limited = !l.since.IsZero()
	lasting := l.several || now.Sub(l.first) > l.wait()
	if !limited && lasting && l.failures >= l.After {
		l.since = now
	}
	l.next = now.Add(l.wait())
	return limited
}

// Succeeded takes in a success, which ends the limit. It reports whether there was one.
func (l *Limiter) Succeeded() (ended bool) {
	ended = !l.since.IsZero()
	*l = Limiter{RateLimit: l.RateLimit}
	return ended
}

// Until is how long the next attempt has to wait: 0 for not at all.
func (l *Limiter) Until(now time.Time) time.Duration {
	if l.since.IsZero() {
		return 0
	}
	return max(0, l.next.Sub(now))
}

// maxDeferral bounds how long a message is put off that is held back.
const maxDeferral = 5 * time.Minute

// Deferral is how long to put a message off that is held back: Wait, and longer as the outage goes
// on, so that the queue does not go round and round; but no more than a quarter of the time
// that it has lasted, or 5 minutes.
func (l *Limiter) Deferral(now time.Time) time.Duration {
	if l.since.IsZero() {
		return l.wait()
	}
	return max(l.wait(), min(now.Sub(l.since)/4, maxDeferral))
}

func (l *Limiter) wait() time.Duration {
	if l.Wait == 0 {
		return DefaultRateLimitWait
	}
	return l.Wait
}

// Mendable tells whether another attempt may succeed: the error is not unrecoverable, and no rule
// says what becomes of the message at once.
func (f Failure) Mendable() bool {
	_, action := f.Config.ruled(f)
	return action == nil && !f.Unrecoverable()
}

// Throttled are the failures of a message that used up no retry, because attempts were limited, since the policy last
// decided about it.
type Throttled struct {
	Failures int
	Since    time.Time // of the first; zero before
}

// Add is t with one more failure.
func (t Throttled) Add(now time.Time) Throttled {
	if t.Failures++; t.Failures == 1 || t.Since.IsZero() {
		t.Since = now
	}
	return t
}

// Exhausted reports whether the policy is to decide about a message that has failed so often.
func (r RateLimit) Exhausted(t Throttled, now time.Time) bool {
	return t.Failures >= cmp.Or(r.MaxFailures, DefaultRateLimitMaxFailures) ||
		t.Failures > 0 && now.Sub(t.Since) >= cmp.Or(r.MaxTime, DefaultRateLimitMaxTime)
}

// DeferHeaders are the headers of the copy that puts off a message which is held back: those that
// were received, with the immediate retries that are used up already and the failures that used up none.
func DeferHeaders(received header.Map, used int, t Throttled) header.Map {
	h := received.Clone()
	if used > 0 {
		h.Set(header.HoldfastUsedRetries, strconv.Itoa(min(used, maxDelayed)))
	}
	h.Del(header.HoldfastThrottledFailures)
	h.Del(header.HoldfastThrottledSince)
	if t.Failures > 0 {
		h.Set(header.HoldfastThrottledFailures, strconv.Itoa(min(t.Failures, maxDelayed)))
		h.Set(header.HoldfastThrottledSince, header.FormatTime(t.Since))
	}
	return h
}

// ThrottledFailures are those that the headers of such a copy tell of. A time that makes no sense, or is in the
// future, of a clock that is ahead, is now.
func ThrottledFailures(h header.Map, now time.Time) Throttled {
	n := count(h.Get(header.HoldfastThrottledFailures))
	if n == 0 {
		return Throttled{}
	}
	since, err := header.ParseTime(h.Get(header.HoldfastThrottledSince))
	if err != nil || since.After(now) {
		since = now
	}
	return Throttled{n, since}
}

// UsedRetries are the immediate retries of this cycle that were used up before the copy with
// these headers was made: 0 where they say nothing that makes sense.
func UsedRetries(h header.Map) int { return count(h.Get(header.HoldfastUsedRetries)) }
