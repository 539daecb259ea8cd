package recoverability

import "time"

// Defaults of [RateLimit].
const (
	DefaultRateLimitDelay       = 5 * time.Second
	DefaultRateLimitMaxFailures = 10
	DefaultRateLimitMaxTime     = 15 * time.Minute
)

// RateLimit is for outages of what handlers need, such as a database: after some failures in a row
// one message at a time is attempted, with a wait between attempts, until one succeeds. What is
// held back meanwhile loses none of its retries. The zero value is no limit.
//
// A failure that no other attempt can mend says nothing of an outage: an unrecoverable error, or
// one that a [Rule] with an Action is for. Nor do failures of one message alone within Delay, such as its
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
	// Delay is the time between attempts while limited. Default: 5 s.
	Delay time.Duration
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
	if r.Delay < 0 {
		bad("RateLimit.Delay is negative: %v", r.Delay)
	}
	if r.MaxFailures < 0 {
		bad("RateLimit.MaxFailures is negative: %d", r.MaxFailures)
	}
	if r.MaxTime < 0 {
		bad("RateLimit.MaxTime is negative: %v", r.MaxTime)
	}
	if r.After <= 0 && (r.Delay != 0 || r.MaxFailures != 0 || r.MaxTime != 0 || r.Scope != ByEndpoint) {
		bad("RateLimit.After is not set, and without it there is no limit")
	}
	if r.Scope < ByEndpoint || r.Scope > ByType {
		bad("RateLimit.Scope is %d: use ByEndpoint or ByType", r.Scope)
	}
}

// Mendable reports whether another attempt may succeed: the error is not unrecoverable, and no rule has an Action for it.
func (f Failure) Mendable() bool {
	_, action := f.Config.ruled(f)
	return action == nil && !f.Unrecoverable()
}
