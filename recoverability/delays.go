package recoverability

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// Delays are the delays between delayed retries. They grow from one to the next. A zero field is its default.
type Delays struct {
	// Delay is the first delay, and with Linear the growth of each. Default: 10 s.
	Delay time.Duration
	// Backoff is the growth of the delays. Default: Linear.
	Backoff Backoff
	// MaxDelay is the longest delay. Default: no bound. [None] is no bound in a [Rule] where the Config has one.
	MaxDelay time.Duration
	// Jitter is the largest share of a delay, from 0 to 1, that a random part takes off, so that messages that failed
	// together are not retried together: with 0.5, 10 s is a delay from 5 s to 10 s. The random part depends on the
	// message's id alone, so the same failure always has the same delay. Default: no jitter. [None] is no jitter in
	// a Rule where the Config has one.
	Jitter float64
}

// Backoff is the growth of delays.
type Backoff int

// The backoffs, each with the delays of a Delay of 10 s.
const (
	Linear      Backoff = iota + 1 // 10 s, 20 s, 30 s, 40 s
	Constant                       // 10 s, 10 s, 10 s, 10 s
	Exponential                    // 10 s, 20 s, 40 s, 80 s
)

// String returns the name of the backoff.
func (b Backoff) String() string {
	if b < Linear || b > Exponential {
		return fmt.Sprintf("Backoff(%d)", int(b))
	}
	return [...]string{Linear: "Linear", Constant: "Constant", Exponential: "Exponential"}[b]
}

const longest = time.Duration(math.MaxInt64)

// delay returns the delay before the next cycle.
func (d Delays) delay(f Failure) time.Duration {
	next := d.nominal(max(0, f.Delayed))
	if d.MaxDelay > 0 {
		next = min(next, d.MaxDelay)
	}
	if d.Jitter <= 0 {
		return next
	}
	return next - time.Duration(float64(next)*d.Jitter*chance(f.MessageID, f.Delayed))
}

// nominal returns the delay after before others, without bound and jitter; the longest Duration if it overflows.
func (d Delays) nominal(before int) time.Duration {
	times := int64(1)
	switch d.Backoff {
	case Constant:
	case Exponential:
		if before >= 63 {
			return longest
		}
		times <<= before
	default:
		times += int64(min(before, math.MaxInt-1))
	}
	if d.Delay > longest/time.Duration(times) {
		return longest
	}
	return d.Delay * time.Duration(times)
}

// chance returns a number from 0 up to 1, uniform over messages and delays, and always the same for one.
func chance(id string, delayed int) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, id, " ", delayed) // never fails
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15 // ids that differ in a digit differ in all bits
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return float64((x^x>>32)>>11) / (1 << 53)
}

func (d Delays) validate(bad func(format string, args ...any)) {
	if d.Delay < 0 {
		bad("Delays.Delay is negative: %v; 0 is the default", d.Delay)
	}
	if d.Backoff < 0 || d.Backoff > Exponential {
		bad("Delays.Backoff is %v: use Linear, Constant or Exponential", d.Backoff)
	}
	if d.MaxDelay < None {
		bad("Delays.MaxDelay is negative: %v; use None for no bound", d.MaxDelay)
	}
	if d.Jitter != None && !(d.Jitter >= 0 && d.Jitter <= 1) { // nor NaN
		bad("Delays.Jitter is %v: it is a share from 0 to 1, or None", d.Jitter)
	}
}

// LongestDelay returns the longest delay of c and its rules, or 0 where there are no delayed retries. The delays of
// [RetryAfter] and of a Policy are not known.
func (c Config) LongestDelay() time.Duration {
	c = c.WithDefaults()
	d := c.lastDelay()
	for i := range c.Rules {
		d = max(d, c.with(&c.Rules[i]).lastDelay())
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
