package resilience

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// None turns off a field of [Retry] whose zero is a default.
const None = -1

// Defaults of [Retry].
const (
	DefaultMax   = 3
	DefaultDelay = 2 * time.Second
)

// Bounds of [Policy.Validate].
const (
	maxName    = 200
	maxRetries = 1_000_000
	maxTime    = 24 * time.Hour // of one delay and of one attempt
)

// Policy declares how a function is retried, and how long an attempt may take. It is data: it can
// be compared and copied.
type Policy struct {
	// Name is the name of the policy, unique in a [Catalog]. It is written to logs and headers.
	Name string
	// Retry declares the retries. Default: no retries. If one field of Retry is set, the others
	// have their defaults. A policy has a Retry, a Timeout or both.
	Retry Retry
	// Timeout is the time limit of each attempt. Default: no limit. All attempts and the delays
	// between them may take longer together: the caller's context limits these.
	Timeout time.Duration
}

// Retry declares retries. The zero Retry declares none. If a field is set, each zero field is its
// default.
type Retry struct {
	// Max is the number of retries after the first attempt: with 4, there are at most 5 attempts.
	// Default: 3. [None] is no retries.
	Max int
	// Delay is the delay before the first retry, and the unit of growth of the others. Default: 2
	// s. [None] is no delay.
	Delay time.Duration
	// Backoff is the growth of the delays. Default: Constant.
	Backoff Backoff
	// MaxDelay is the longest delay. Default: no bound. [None] is no bound.
	MaxDelay time.Duration
	// Jitter is the largest share of a delay, from 0 to 1, that a random part takes off, so that
	// functions that failed together are not retried together: with 0.5, 10 s is a delay from 5 s
	// to 10 s. It is taken off after MaxDelay has been applied. Default: no jitter. [None] is no
	// jitter.
	Jitter float64
}

// Backoff is the growth of delays.
type Backoff int

// The backoffs, each with the delays of a Delay of 10 s.
const (
	Constant    Backoff = iota + 1 // 10 s, 10 s, 10 s, 10 s
	Linear                         // 10 s, 20 s, 30 s, 40 s
	Exponential                    // 10 s, 20 s, 40 s, 80 s
)

// String returns the name of the backoff.
func (b Backoff) String() string {
	if b < Constant || b > Exponential {
		return fmt.Sprintf("Backoff(%d)", int(b))
	}
	return [...]string{Constant: "Constant", Linear: "Linear", Exponential: "Exponential"}[b]
}

// WithDefaults returns p with defaults for the zero fields of its Retry, unless the Retry is zero.
func (p Policy) WithDefaults() Policy {
	if p.Retry == (Retry{}) {
		return p
	}
	if p.Retry.Max == 0 {
		p.Retry.Max = DefaultMax
	}
	if p.Retry.Delay == 0 {
		p.Retry.Delay = DefaultDelay
	}
	if p.Retry.Backoff == 0 {
		p.Retry.Backoff = Constant
	}
	return p
}

// Retries returns the number of retries after the first attempt: Retry.Max, with its default, or 0
// for None and for a zero Retry.
func (p Policy) Retries() int { return max(0, p.WithDefaults().Retry.Max) }

const longest = time.Duration(math.MaxInt64)

// DelayFor returns the delay before the next attempt after a number of failed ones: Backoff, then
// MaxDelay, then Jitter. It does not look at Max. A zero Retry has no delay. A delay that overflows
// is the longest Duration. random returns a number from 0 up to 1, as [rand.Float64] does, which is
// the default for nil. Without jitter it is not called.
func (p Policy) DelayFor(failures int, random func() float64) time.Duration {
	r := p.WithDefaults().Retry
	next := r.nominal(max(1, failures))
	if r.MaxDelay > 0 {
		next = min(next, r.MaxDelay)
	}
	if !(r.Jitter > 0) {
		return next
	}
	if random == nil {
		random = rand.Float64
	}
	return max(0, next-time.Duration(float64(next)*min(r.Jitter, 1)*random()))
}

// nominal returns the delay after a number of failures, without bound and jitter.
func (r Retry) nominal(failures int) time.Duration {
	if r.Delay <= 0 {
		return 0
	}
	times := int64(1)
	switch r.Backoff {
	case Constant:
	case Linear:
		times = int64(failures)
	case Exponential:
		if failures > 63 {
			return longest
		}
		times <<= failures - 1
	}
	if r.Delay > longest/time.Duration(times) {
		return longest
	}
	return r.Delay * time.Duration(times)
}

// Validate returns all mistakes in p, joined.
func (p Policy) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("resilience: policy %.200q: "+format, append([]any{p.Name}, args...)...))
	}
	switch {
	case strings.TrimSpace(p.Name) == "":
		bad("the name is empty")
	case len(p.Name) > maxName:
		bad("the name has %d bytes, and at most %d are allowed", len(p.Name), maxName)
	case !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, unicode.IsControl):
		bad("the name has a control character or invalid UTF-8")
	}
	switch {
	case p.Timeout == 0 && p.Retry == (Retry{}):
		bad("Retry and Timeout are both zero: set a field of Retry for retries, or Timeout for a limit of each attempt")
	case p.Timeout < 0:
		bad("Timeout is negative: %v; 0 is no limit", p.Timeout)
	case p.Timeout > maxTime:
		bad("Timeout is %v, and at most %v are allowed", p.Timeout, maxTime)
	}
	p.Retry.validate(bad)
	return errors.Join(errs...)
}

func (r Retry) validate(bad func(format string, args ...any)) {
	switch {
	case r.Max < None:
		bad("Retry.Max is %d: use None for no retries", r.Max)
	case r.Max > maxRetries:
		bad("Retry.Max is %d, and at most %d are allowed", r.Max, maxRetries)
	}
	switch {
	case r.Delay < None:
		bad("Retry.Delay is negative: %v; use None for no delay", r.Delay)
	case r.Delay > maxTime:
		bad("Retry.Delay is %v, and at most %v are allowed", r.Delay, maxTime)
	}
	if r.Backoff < 0 || r.Backoff > Exponential {
		bad("Retry.Backoff is %v: use Constant, Linear or Exponential", r.Backoff)
	}
	switch delay := (Policy{Retry: r}).WithDefaults().Retry.Delay; {
	case r.MaxDelay < None:
		bad("Retry.MaxDelay is negative: %v; use None for no bound", r.MaxDelay)
	case r.MaxDelay > maxTime:
		bad("Retry.MaxDelay is %v, and at most %v are allowed", r.MaxDelay, maxTime)
	case r.MaxDelay > 0 && r.MaxDelay < delay:
		bad("Retry.MaxDelay is %v, which is shorter than the first delay, %v", r.MaxDelay, delay)
	}
	if r.Jitter != None && !(r.Jitter >= 0 && r.Jitter <= 1) { // nor NaN
		bad("Retry.Jitter is %v: it is a share from 0 to 1, or None", r.Jitter)
	}
}
