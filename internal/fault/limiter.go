package fault

import (
	"cmp"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

// Limiter is the state of a rate limit in one scope. It is not safe for concurrent use.
type Limiter struct {
	recoverability.RateLimit

	failures int       // in a row
	id       string    // of the first message that failed
	several  bool      // others have failed
	first    time.Time // when the first failed
	since    time.Time // when the limit began; zero without a limit
	next     time.Time // when the next attempt may begin
}

// Limited returns since when attempts are limited, zero if they are not, and the number of failures in a row.
func (l *Limiter) Limited() (since time.Time, failures int) { return l.since, l.failures }

// Failed counts a failure of the message with an id. It reports whether attempts were limited before, so that the
// failure uses up no retry.
func (l *Limiter) Failed(id string, now time.Time) (limited bool) {
	switch {
	case l.failures == 0:
		l.id, l.first = id, now
	case id != l.id:
		l.several = true
	}
	l.failures++
	limited = !l.since.IsZero()
	lasting := l.several || now.Sub(l.first) > l.delay()
	if !limited && lasting && l.failures >= l.After {
		l.since = now
	}
	l.next = now.Add(l.delay())
	return limited
}

// Succeeded ends the limit after a success. It reports whether there was one.
func (l *Limiter) Succeeded() (ended bool) {
	ended = !l.since.IsZero()
	*l = Limiter{RateLimit: l.RateLimit}
	return ended
}

// Until returns the wait before the next attempt; 0 for none.
func (l *Limiter) Until(now time.Time) time.Duration {
	if l.since.IsZero() {
		return 0
	}
	return max(0, l.next.Sub(now))
}

// maxDeferral bounds the delay of a postponed message.
const maxDeferral = 5 * time.Minute

// Deferral returns the delay of a postponed message: Delay, or a quarter of the outage up to 5 minutes, whichever is
// longer. So the queue does not go round and round in a long outage.
func (l *Limiter) Deferral(now time.Time) time.Duration {
	if l.since.IsZero() {
		return l.delay()
	}
	return max(l.delay(), min(now.Sub(l.since)/4, maxDeferral))
}

// Exhausted reports whether the policy decides about the next failure of a message with these failures.
func (l *Limiter) Exhausted(t Throttled, now time.Time) bool {
	return t.Failures >= cmp.Or(l.MaxFailures, recoverability.DefaultRateLimitMaxFailures) ||
		t.Failures > 0 && now.Sub(t.Since) >= cmp.Or(l.MaxTime, recoverability.DefaultRateLimitMaxTime)
}

func (l *Limiter) delay() time.Duration { return cmp.Or(l.Delay, recoverability.DefaultRateLimitDelay) }
