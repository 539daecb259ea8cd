package recoverability

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

func TestDelaysGrowByTheirBackoff(t *testing.T) {
	const s = time.Second
	tests := []struct {
		delays Delays
		want   []time.Duration
	}{
		{Delays{}, []time.Duration{10 * s, 20 * s, 30 * s, 40 * s}},
		{Delays{Backoff: resilience.Linear}, []time.Duration{10 * s, 20 * s, 30 * s, 40 * s}},
		{Delays{Backoff: resilience.Constant}, []time.Duration{10 * s, 10 * s, 10 * s, 10 * s}},
		{Delays{Backoff: resilience.Exponential}, []time.Duration{10 * s, 20 * s, 40 * s, 80 * s}},
		{Delays{MaxDelay: 25 * s}, []time.Duration{10 * s, 20 * s, 25 * s, 25 * s}},
		{Delays{Backoff: resilience.Constant, MaxDelay: 5 * s}, []time.Duration{5 * s, 5 * s}},
		{Delays{Backoff: resilience.Exponential, MaxDelay: 30 * s}, []time.Duration{10 * s, 20 * s, 30 * s, 30 * s}},
	}
	for _, test := range tests {
		c := Config{Immediate: None, Delayed: 10, Delays: test.delays}
		for i, want := range test.want {
			if got := c.Decide(failed(1, i)); got != (Delay{For: want}) {
				t.Errorf("%+v: delay %d is %v, want %v", test.delays, i+1, got, want)
			}
		}
	}
}

func TestExponentialDelaysThatOverflowAreTheLongest(t *testing.T) {
	for _, test := range []struct {
		increase time.Duration
		before   int
		want     time.Duration
	}{
		{1, 62, 1 << 62},
		{1, 63, longest},
		{1, 64, longest},
		{1, math.MaxInt - 1, longest},
		{2, 62, longest},
		{3, 61, 3 << 61},
		{5, 61, longest},
		{1, 61, 1 << 61},
		{time.Second, 40, longest},
	} {
		c := Config{Immediate: None, Delayed: math.MaxInt, Delays: Delays{Delay: test.increase, Backoff: resilience.Exponential}}
		if got := c.Decide(failed(1, test.before)); got != (Delay{For: test.want}) {
			t.Errorf("%v after %d delays: %v, want %v", test.increase, test.before, got, test.want)
		}
	}
}

// Whatever the backoff, jitter only shortens a delay, by at most its share, and is the same for the
// same failure.
func TestJitterOnlyShortensAndOnlyByItsShare(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 5000 {
		c := Config{
			Immediate: None, Delayed: 100, Delays: Delays{
				Delay:   time.Duration(1 + r.Int64N(int64(time.Hour))),
				Backoff: resilience.Backoff(r.IntN(4)), MaxDelay: time.Duration(r.Int64N(int64(48 * time.Hour))),
			},
		}
		f := failed(1, r.IntN(100))
		f.MessageID = fmt.Sprint(r.Uint64())
		whole := c.Decide(f).(Delay).For
		c.Delays.Jitter = r.Float64()
		got := c.Decide(f).(Delay).For
		least := whole - time.Duration(math.Ceil(float64(whole)*c.Delays.Jitter))
		if got > whole || got < least || got < 0 {
			t.Fatalf("%+v after %d delays: %v, want %v to %v", c, f.Delayed, got, least, whole)
		}
		if again := c.Decide(f); again != (Delay{For: got}) {
			t.Fatalf("%v, and then %v", got, again)
		}
	}
}

func TestJitterSpreadsMessagesAndDelays(t *testing.T) {
	c := Config{Immediate: None, Delayed: 100, Delays: Delays{Backoff: resilience.Constant, Jitter: 1}}
	var tenths [10]int
	const n = 10_000
	for i := range n {
		f := failed(1, i%10)
		f.MessageID = fmt.Sprintf("order-%d", i/10)
		tenths[c.Decide(f).(Delay).For/time.Second]++
	}
	for i, count := range tenths {
		if count < n/10*8/10 || count > n/10*12/10 {
			t.Errorf("%d of %d delays are from %d s to %d s, want about a tenth", count, n, i, i+1)
		}
	}
}

func FuzzDelays(f *testing.F) {
	f.Add("order-7", int64(time.Second), int64(time.Minute), 3, int8(2), 0.5)
	f.Add("", int64(math.MaxInt64), int64(0), math.MaxInt, int8(3), 1.0)
	f.Add("\xff", int64(1), int64(1), 62, int8(0), 0.0)
	f.Fuzz(func(t *testing.T, id string, increase, most int64, delayed int, curve int8, jitter float64) {
		c := Config{
			Immediate: None, Delayed: math.MaxInt,
			Delays: Delays{Delay: time.Duration(increase), Backoff: resilience.Backoff(curve), MaxDelay: time.Duration(most), Jitter: jitter},
		}
		if c.Validate() != nil || delayed == math.MaxInt {
			return
		}
		failure := failed(1, delayed)
		failure.MessageID = id
		d := c.Decide(failure).(Delay)
		c.Delays.Jitter = 0
		whole := c.Decide(failure).(Delay)
		if d.For < 0 || d.For > whole.For || most > 0 && d.For > time.Duration(most) {
			t.Fatalf("%v of %v at most", d, whole)
		}
	})
}

func TestTheLongestDelayIsThatOfTheConfigurationOrARule(t *testing.T) {
	const m = time.Minute
	for name, test := range map[string]struct {
		config Config
		want   time.Duration
	}{
		"the default":         {Config{}, 30 * time.Second},
		"none":                {Config{Delayed: None}, 0},
		"bounded":             {Config{Delayed: 100, Delays: Delays{Delay: m, MaxDelay: 5 * m, Jitter: 1}}, 5 * m},
		"without an end":      {Config{Delayed: math.MaxInt, Delays: Delays{Delay: 1}}, 10_000},
		"after a day":         {Config{Delayed: 100, Delays: Delays{Delay: 10 * time.Hour, Backoff: resilience.Exponential}}, 20 * time.Hour},
		"longer than a day":   {Config{Delayed: 100, Delays: Delays{Delay: 30 * time.Hour}}, 30 * time.Hour},
		"a rule":              {Config{Rules: []Rule{{Delayed: 6}, {Delays: Delays{Delay: m}}}}, 3 * m},
		"a rule, none else":   {Config{Delayed: None, Rules: []Rule{{Delayed: 2}}}, 20 * time.Second},
		"a rule that doubles": {Config{Rules: []Rule{{Delays: Delays{Backoff: resilience.Exponential}}}}, 40 * time.Second},
	} {
		if got := test.config.LongestDelay(); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestARuleTakesTheDelaysItLeavesOutFromTheConfig(t *testing.T) {
	const s = time.Second
	c := Config{Immediate: None, Delayed: 10, Delays: Delays{Delay: s, Backoff: resilience.Exponential, MaxDelay: 3 * s, Jitter: 0.5}}
	for name, test := range map[string]struct {
		rule Delays
		want Delays
	}{
		"nothing set":       {Delays{}, c.Delays},
		"another delay":     {Delays{Delay: 2 * s}, Delays{Delay: 2 * s, Backoff: resilience.Exponential, MaxDelay: 3 * s, Jitter: 0.5}},
		"no bound":          {Delays{MaxDelay: None}, Delays{Delay: s, Backoff: resilience.Exponential, MaxDelay: None, Jitter: 0.5}},
		"no jitter, linear": {Delays{Backoff: resilience.Linear, Jitter: None}, Delays{Delay: s, MaxDelay: 3 * s, Jitter: 0}},
	} {
		ruled, plain := c, c
		ruled.Rules = []Rule{{Delays: test.rule}}
		plain.Delays = test.want
		for delayed := range 5 {
			if got, want := ruled.Decide(failed(1, delayed)), plain.Decide(failed(1, delayed)); got != want {
				t.Errorf("%s: delay %d is %v, want %v", name, delayed+1, got, want)
			}
		}
		if err := ruled.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
