package recoverability

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// Delays is how the delays of delayed retries grow from one to the next, beginning with
// TimeIncrease. The zero value is [Linear], without a bound and without chance.
type Delays struct {
	// Curve is their shape: Linear unless set.
	Curve Curve
	// Max is the longest delay: no bound unless set.
	Max time.Duration
	// Jitter is the share of a delay that chance takes off at most, so that what failed
	// together does not come back together: 0.5 makes 10 s anything from 5 s to 10 s. From 0, which
	// is none, to 1. Chance is drawn from the message's id, so the same failure
	// always has the same delay.
	Jitter float64
}

// Curve is the shape of growing delays.
type Curve int

// The curves, each for a TimeIncrease of 10 s.
const (
	Linear      Curve = iota + 1 // 10 s, 20 s, 30 s, 40 s
	Constant                     // 10 s, 10 s, 10 s, 10 s
	Exponential                  // 10 s, 20 s, 40 s, 80 s
)

// String is the curve's name.
func (c Curve) String() string {
	switch c {
	case Linear:
		return "Linear"
	case Constant:
		return "Constant"
	case Exponential:
		return "Exponential"
	}
	return fmt.Sprintf("Curve(%d)", int(c))
}

const longest = time.Duration(math.MaxInt64)

// delay is the one before the next cycle.
func (c Config) delay(f Failure) time.Duration {
	d := c.Delays.nominal(c.TimeIncrease, max(0, f.Delayed))
	if c.Delays.Max > 0 {
		d = min(d, c.Delays.Max)
	}
	if c.Delays.Jitter == 0 {
		return d
	}
	return d - time.Duration(float64(d)*c.Delays.Jitter*chance(f.MessageID, f.Delayed))
}

// nominal is the delay after that many others, the longest Duration where it overflows.
func (d Delays) nominal(step time.Duration, before int) time.Duration {
	times := int64(1)
	switch d.Curve {
	case Constant:
	case Exponential:
		if before >= 63 {
			return longest
		}
		times <<= before
	default:
		times += int64(min(before, math.MaxInt-1))
	}
	if step > longest/time.Duration(times) {
		return longest
	}
	return step * time.Duration(times)
}

// chance is from 0 up to 1, evenly over messages and delays, and always the same for one.
func chance(id string, delayed int) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, id, " ", delayed) // never fails
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15 // ids that differ in a digit differ in all bits
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return float64((x^x>>32)>>11) / (1 << 53)
}

func (d Delays) validate(bad func(format string, args ...any)) {
	if d.Curve < 0 || d.Curve > Exponential {
		bad("Delays.Curve is %v: there is no such curve", d.Curve)
	}
	if d.Max < 0 {
		bad("Delays.Max is negative: %v", d.Max)
	}
	if !(d.Jitter >= 0 && d.Jitter <= 1) { // nor NaN
		bad("Delays.Jitter is %v: it is a share from 0 to 1", d.Jitter)
	}
}

// LongestDelay is the longest that c, with its rules, may decide on, without what [RetryAfter] and a
// Policy ask for; 0 where it has no delayed retries.
func (c Config) LongestDelay() time.Duration {
	c = c.WithDefaults()
	d := c.lastDelay()
	for i := range c.Rules {
		d = max(d, c.with(&c.Rules[i]).lastDelay())
	}
	return d
}

// lastDelay is the longest of those that begin within a day, whatever chance does.
func (c Config) lastDelay() (last time.Duration) {
	const enough = 10_000
	c.Delays.Jitter = 0
	var waited time.Duration
	for n := 0; n < min(c.Delayed, enough) && waited <= maxRetryTime; n++ {
		last = c.delay(Failure{Delayed: n})
		if last > maxRetryTime {
			return last
		}
		waited += last
	}
	return last
}
