package recoverability

import (
	"time"
)

// Defaults of [RateLimit].
const (
	DefaultRateLimitDelay       = 5 * time.Second
	DefaultRateLimitMaxFailures = 10
	DefaultRateLimitMaxTime     = 15 * time.Minute
)

// RateLimit limits attempts during an outage of a dependency, such as a database. After some
// failures in a row one message at a time is attempted, with a delay between attempts, until one
// succeeds. Throttled messages use up no retry. The zero value is no limit.
//
// Failures after which there is no other attempt do not count: those with an unrecoverable error,
// and those for which a [Rule] has an Action. Nor do failures of a single message within Delay,
// such as its immediate retries.
//
// A faulty deployment or producer does not end by itself as an outage does. So messages are not
// throttled without end: after MaxFailures or MaxTime the policy decides, and one retry is used up.
//
// Each process counts its own failures.
type RateLimit struct {
	// After is the number of failures in a row that begins the limit. A success restarts the count.
	// 0: no limit. It should be well above Config.Immediate, so that a few bad messages do not
	// reach it before a good one succeeds.
	After int
	// Delay is the time between attempts while limited. Default: 5 s.
	Delay time.Duration
	// MaxFailures is how often a message may fail while attempts are limited. On the last of these
	// failures the policy decides, and one retry is used up; then the count restarts. Default: 10.
	MaxFailures int
	// MaxTime is the same by time: the policy decides when the first failure without a retry is at
	// least that old. Default: 15 min.
	MaxTime time.Duration
	// Scope selects the messages that are counted and limited together.
	Scope RateLimitScope
}

// RateLimitScope selects the messages that are counted and limited together.
type RateLimitScope int

const (
	// ByEndpoint counts and limits all messages of the endpoint. It is the zero value.
	ByEndpoint RateLimitScope = iota
	// ByType counts and limits each type of messages separately.
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
