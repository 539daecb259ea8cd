package fault

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
)

// life records the processing of a message that always fails.
type life struct {
	attempts int
	delays   []time.Duration
	lastWait time.Duration // from the first failure to the last decision to delay
	end      recoverability.Action
}

// live processes a message as an endpoint does, with deliveries and delayed copies, until it is
// moved to the error queue. Earlier cycles are known by the headers only.
func live(t *testing.T, c recoverability.Config, fail func() error) life {
	t.Helper()
	var (
		headers header.Map
		l       life
		start   = first
		now     = start
	)
	for immediate := 1; l.attempts < 10_000; immediate++ {
		l.attempts++
		f := recoverability.Failure{
			Err: fail(), Headers: headers, Immediate: immediate, Attempt: immediate, Now: now,
			Delayed: DelayedRetries(headers), FirstFailure: FirstFailure(headers, now),
		}
		switch a := c.Decide(f).(type) {
		case recoverability.Retry:
			now = now.Add(time.Millisecond)
		case recoverability.Delay:
			headers, immediate = DelayHeaders(f, header.Map{}, time.Minute), 0
			l.delays, l.lastWait = append(l.delays, a.For), now.Sub(start)
			now = now.Add(a.For)
		default:
			l.end = a
			return l
		}
	}
	t.Fatalf("%+v: no end after %d attempts", c, l.attempts)
	return l
}

// never is None where n is 0, as a Config wants it.
func never(n int) int {
	if n == 0 {
		return recoverability.None
	}
	return n
}

func TestAlwaysFailingIsTriedExactlyAsOftenAsConfigured(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	broken := func() error { return errBroken }
	for range 500 {
		immediate, delayed := r.IntN(12), r.IntN(12)
		c := recoverability.Config{
			Immediate: never(immediate), Delayed: never(delayed),
			Delays: recoverability.Delays{Delay: time.Duration(1 + r.IntN(int(10*time.Minute)))},
		}
		l := live(t, c, broken)
		if want := (immediate + 1) * (delayed + 1); l.attempts != want {
			t.Fatalf("%+v: %d attempts, want %d", c, l.attempts, want)
		}
		if len(l.delays) != delayed || l.end != (recoverability.MoveToError{Queue: "error"}) {
			t.Fatalf("%+v: %d delays, then %v; want %d, then the error queue", c, len(l.delays), l.end, delayed)
		}
		for i, d := range l.delays {
			if want := c.Delays.Delay * time.Duration(i+1); d != want {
				t.Fatalf("%+v: delay %d is %v, want %v", c, i+1, d, want)
			}
		}
	}
}

func TestTheDefaultIs24Attempts(t *testing.T) {
	if l := live(t, recoverability.Config{}, func() error { return errBroken }); l.attempts != 24 {
		t.Errorf("%d attempts, want 24", l.attempts)
	}
}

// Whatever a handler says of its failures, there are no more attempts than without.
func TestMarksNeverAddAttempts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		immediate, delayed := r.IntN(8), r.IntN(8)
		c := recoverability.Config{Immediate: never(immediate), Delayed: never(delayed), Delays: recoverability.Delays{Delay: time.Second}}
		gaveUp := false
		l := live(t, c, func() error {
			switch n := r.IntN(20); {
			case gaveUp:
				t.Fatalf("%+v: tried again after an unrecoverable error", c)
			case n == 0:
				gaveUp = true
				return recoverability.Unrecoverable(errBroken)
			case n < 8:
				return recoverability.RetryAfter(errBroken, time.Duration(r.IntN(1000))*time.Second)
			}
			return errBroken
		})
		if most := (immediate + 1) * (delayed + 1); l.attempts > most || len(l.delays) > delayed {
			t.Fatalf("%+v: %d attempts and %d delays, want at most %d and %d", c, l.attempts, len(l.delays), most, delayed)
		}
	}
}

// No delay is decided later than a day after the first failure.
func TestNoDelayADayAfterTheFirstFailure(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	ended := 0
	for range 200 {
		c := recoverability.Config{Immediate: never(r.IntN(3)), Delayed: 1 + r.IntN(30), Delays: recoverability.Delays{Delay: time.Duration(1 + r.IntN(int(12*time.Hour)))}}
		l := live(t, c, func() error { return errBroken })
		if l.lastWait > 24*time.Hour {
			t.Fatalf("%+v: a delay was decided %v after the first failure", c, l.lastWait)
		}
		if len(l.delays) < c.Delayed {
			ended++
		}
	}
	if ended == 0 {
		t.Error("no message ran into the cap: the test shows nothing")
	}
}

// anyConfig is a valid one with every field that Decide reads. The last rule is of errBroken.
func anyConfig(r *rand.Rand) recoverability.Config {
	numbers := func() (int, int, recoverability.Delays) {
		return r.IntN(8) - 1, r.IntN(8) - 1, recoverability.Delays{
			Delay: time.Duration(r.Int64N(int64(5 * time.Hour))), Backoff: resilience.Backoff(r.IntN(4)),
			MaxDelay: time.Duration(r.Int64N(int64(40 * time.Hour))), Jitter: float64(r.IntN(3)) / 2,
		}
	}
	var c recoverability.Config
	c.Immediate, c.Delayed, c.Delays = numbers()
	other := recoverability.Rule{Errors: []recoverability.Matcher{recoverability.As[*cardError]()}, Action: recoverability.Discard{}}
	mine := recoverability.Rule{Errors: []recoverability.Matcher{recoverability.Is(errBroken)}, ErrorQueue: "mine"}
	mine.Immediate, mine.Delayed, mine.Delays = numbers()
	c.Rules = []recoverability.Rule{other, mine}
	return c
}

// Whatever the rules, backoffs and marks, a message comes to its end, is never tried more often
// than is allowed, and never later than a day and the last delay after its first failure.
func TestEveryConfigurationBoundsAttemptsAndDelays(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	capped := 0
	for range 2000 {
		c := anyConfig(r)
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		ruled := recoverability.Failure{Err: errBroken, Config: c}
		allowed := ruled.Allowed()
		most := (allowed.Immediate + 1) * (allowed.Delayed + 1)
		l := live(t, c, func() error { return fmt.Errorf("handler: %w", errBroken) })
		switch {
		case l.attempts > most || len(l.delays) > allowed.Delayed:
			t.Fatalf("%+v: %d attempts and %d delays, want at most %d and %d", c, l.attempts, len(l.delays), most, allowed.Delayed)
		case len(l.delays) == allowed.Delayed && l.attempts != most:
			t.Fatalf("%+v: %d attempts, want %d", c, l.attempts, most)
		case l.lastWait > 24*time.Hour:
			t.Fatalf("%+v: a delay was decided %v after the first failure", c, l.lastWait)
		case l.end != recoverability.MoveToError{Queue: "mine"}:
			t.Fatalf("%+v: ended with %v", c, l.end)
		}
		if len(l.delays) < allowed.Delayed {
			capped++
		}
		effective, rule := c.WithDefaults(), c.Rules[1]
		effective.Delays = recoverability.Delays{
			Delay:    cmp.Or(rule.Delays.Delay, effective.Delays.Delay),
			Backoff:  cmp.Or(rule.Delays.Backoff, effective.Delays.Backoff),
			MaxDelay: cmp.Or(rule.Delays.MaxDelay, effective.Delays.MaxDelay),
			Jitter:   cmp.Or(rule.Delays.Jitter, effective.Delays.Jitter),
		}
		for i, got := range l.delays {
			whole := formula(effective, i+1)
			if share := float64(whole) * (1 - effective.Delays.Jitter); got > whole || float64(got) < share-1 {
				t.Fatalf("%+v: delay %d is %v, want from %v to %v", c, i+1, got, time.Duration(share), whole)
			}
		}
	}
	if capped == 0 {
		t.Error("no message ran into the cap: the test shows less than it says")
	}
}

// formula is the n-th delay before chance, as the documentation has it.
func formula(c recoverability.Config, n int) time.Duration {
	d := c.Delays.Delay
	switch c.Delays.Backoff {
	case resilience.Constant:
	case resilience.Exponential:
		for range n - 1 {
			d *= 2
		}
	default:
		d *= time.Duration(n)
	}
	if c.Delays.MaxDelay > 0 {
		d = min(d, c.Delays.MaxDelay)
	}
	return d
}
