package throttle

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// until returns the wait of a message that gets the turn.
func until(l *Limit, now time.Time) time.Duration {
	var t Turn
	defer l.pass(&t)
	wait, _ := l.wait(&t, now)
	return wait
}

// A limit begins after failures in a row, and ends with a success.
func TestALimitEndsWithASuccess(t *testing.T) {
	l := newLimit(recoverability.RateLimit{After: 3, Delay: 10 * time.Second}, "", nil)
	limited := func() bool { since, _ := l.state(); return !since.IsZero() }
	for range 2 { // afterwards it is as if nothing had been
		if l.failed("a", noon) || l.failed("b", noon) || limited() {
			t.Fatal("limited after two failures")
		}
		if l.succeeded() {
			t.Error("a limit ended that had not begun")
		}
		l.failed("a", noon)
		l.failed("b", noon)
		if l.failed("c", noon) {
			t.Error("the failure that begins the limit uses up no retry")
		}
		if !limited() || !l.failed("c", noon.Add(time.Minute)) {
			t.Error("not limited after three failures")
		}
		if got := until(l, noon.Add(time.Minute+4*time.Second)); got != 6*time.Second {
			t.Errorf("the next attempt is due in %v, want 6s", got)
		}
		if got := until(l, noon.Add(time.Hour)); got != 0 {
			t.Errorf("the next attempt is due in %v", got)
		}
		if !l.succeeded() || limited() || until(l, noon) != 0 {
			t.Error("a success did not end the limit")
		}
	}
}

func TestOneMessageAloneDoesNotBeginALimit(t *testing.T) {
	l := newLimit(recoverability.RateLimit{After: 3}, "", nil)
	for range 100 {
		if l.failed("a", noon) {
			t.Fatal("limited")
		}
	}
	if l.failed("a", noon.Add(recoverability.DefaultRateLimitDelay)); until(l, noon) != 0 {
		t.Error("limited by the failures of one message within Wait")
	}
	l.failed("b", noon)
	if since, n := l.state(); since.IsZero() || n != 102 {
		t.Errorf("limited since %v after %d failures, with two messages that fail", since, n)
	}
}

// Failures of one message over more than the wait begin a limit.
func TestFailuresOfOneMessageBeginALimit(t *testing.T) {
	l := newLimit(recoverability.RateLimit{After: 3, Delay: time.Second}, "", nil)
	l.failed("a", noon)
	l.failed("a", noon)
	l.succeeded()
	for n := range 3 {
		if since, _ := l.state(); !since.IsZero() {
			t.Errorf("limited after %d failures", n)
		}
		l.failed("a", noon.Add(time.Duration(n)*time.Second))
	}
	if since, n := l.state(); since.IsZero() || n != 3 {
		t.Errorf("limited since %v after %d failures", since, n)
	}
}

func TestADeferralGrowsWithTheOutageUpToABound(t *testing.T) {
	l := newLimit(recoverability.RateLimit{After: 2, Delay: 4 * time.Second}, "", nil)
	l.failed("a", noon)
	l.failed("b", noon)
	for lasted, want := range map[time.Duration]time.Duration{
		0: 4 * time.Second, 15 * time.Second: 4 * time.Second, time.Minute: 15 * time.Second,
		10 * time.Minute: 150 * time.Second, 24 * time.Hour: 5 * time.Minute,
	} {
		if got := (&Turn{Limit: l}).Deferral(noon.Add(lasted)); got != want {
			t.Errorf("after %v a message is put off for %v, want %v", lasted, got, want)
		}
	}
}

func TestThrottledFailuresAreExhaustedByNumberAndByTime(t *testing.T) {
	for _, c := range []struct {
		limit recoverability.RateLimit
		of    fault.Throttled // and another one now
		want  bool
	}{
		{of: fault.Throttled{}},
		{of: fault.Throttled{Failures: 8, Since: noon}},
		{of: fault.Throttled{Failures: 9, Since: noon}, want: true},
		{of: fault.Throttled{Failures: 1, Since: noon.Add(time.Second - 15*time.Minute)}},
		{of: fault.Throttled{Failures: 1, Since: noon.Add(-15 * time.Minute)}, want: true},
		{limit: recoverability.RateLimit{MaxFailures: 2}, of: fault.Throttled{Failures: 1, Since: noon}, want: true},
		{limit: recoverability.RateLimit{MaxTime: time.Hour}, of: fault.Throttled{Failures: 1, Since: noon.Add(-30 * time.Minute)}},
	} {
		if got := newLimit(c.limit, "", nil).isExhausted(c.of.Add(noon), noon); got != c.want {
			t.Errorf("%+v of %+v: exhausted is %t", c.of, c.limit, got)
		}
	}
}
