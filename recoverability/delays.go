package recoverability

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// Delays are the delays between delayed retries. They grow from one to the next, by the formula of
// [resilience.Policy.DelayFor]. A zero field is its default.
type Delays struct {
	// Delay is the first delay, and with Linear the growth of each. Default: 10 s.
	Delay time.Duration
	// Backoff is the growth of the delays. Default: [resilience.Linear].
	Backoff resilience.Backoff
	// MaxDelay is the longest delay. Default: no bound. [None] is no bound in a [Rule] where the
	// Config has one.
	MaxDelay time.Duration
	// Jitter is the largest share of a delay, from 0 to 1, that a random part takes off, so that
	// messages that failed together are not retried together: with 0.5, 10 s is a delay from 5 s to
	// 10 s. The random part depends on the message's id alone, so the same failure always has the
	// same delay. Default: no jitter. [None] is no jitter in a Rule where the Config has one.
	Jitter float64
}

// delay returns the delay before the next cycle.
func (d Delays) delay(f Failure) time.Duration {
	before := min(max(0, f.Delayed), math.MaxInt-1)
	retry := resilience.Retry{Delay: d.Delay, Backoff: cmp.Or(d.Backoff, resilience.Linear), MaxDelay: d.MaxDelay, Jitter: d.Jitter}
	return resilience.Policy{Retry: retry}.DelayFor(before+1, f.chance)
}

// chance returns a number from 0 up to 1, uniform over messages and their retries, and always the
// same for one.
func (f Failure) chance() float64 { return chance(f.MessageID, f.Delayed+f.Inline) }

func chance(id string, delayed int) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, id, " ", delayed) // never fails
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15 // ids that differ in a digit differ in all bits
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return float64((x^x>>32)>>11) / (1 << 53)
}

// longest is the longest Duration.
const longest = time.Duration(math.MaxInt64)

func (d Delays) validate(bad func(format string, args ...any)) {
	if d.Delay < 0 {
		bad("Delays.Delay is negative: %v; 0 is the default", d.Delay)
	}
	if d.Backoff < 0 || d.Backoff > resilience.Exponential {
		bad("Delays.Backoff is %v: use resilience.Constant, Linear or Exponential", d.Backoff)
	}
	if d.MaxDelay < None {
		bad("Delays.MaxDelay is negative: %v; use None for no bound", d.MaxDelay)
	}
	if d.Jitter != None && !(d.Jitter >= 0 && d.Jitter <= 1) { // nor NaN
		bad("Delays.Jitter is %v: it is a share from 0 to 1, or None", d.Jitter)
	}
}

// LongestDelay returns the longest delay of c, its rules and its policies, or 0 where there are no
// delayed retries. The delays of [RetryAfter] and of a Policy are not known.
func (c Config) LongestDelay() time.Duration {
	c = c.WithDefaults()
	d := c.lastDelay()
	for i := range c.Rules {
		switch r := &c.Rules[i]; {
		case !retries(r.Retry.Policy):
			d = max(d, c.with(r).lastDelay())
		case r.Retry.Mode == resilience.DeferredMode:
			d = max(d, longestDelay(r.Retry.Policy))
		}
	}
	for _, p := range c.Policies.All() {
		d = max(d, longestDelay(p))
	}
	return d
}

// lastDelay returns the longest delay that begins within a day, without jitter.
func (c Config) lastDelay() (last time.Duration) {
	const enough = 10_000
	c.Delays.Jitter = 0
	var waited time.Duration
	for n := 0; n < min(c.Delayed, enough) && waited <= maxRetryTime; n++ {
		last = c.Delays.delay(Failure{Delayed: n})
		if last > maxRetryTime {
			return last
		}
		waited += last
	}
	return last
}
