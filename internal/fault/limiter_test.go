package fault

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestALimitBeginsAfterFailuresInARowAndEndsWithASuccess(t *testing.T) {
	l := Limiter{RateLimit: recoverability.RateLimit{After: 3, Delay: 10 * time.Second}}
	limited := func() bool { since, _ := l.Limited(); return !since.IsZero() }
	for range 2 { // afterwards it is as if nothing had been
		if l.Failed("a", noon) || l.Failed("b", noon) || limited() {
			t.Fatal("limited after two failures")
		}
		if l.Succeeded() {
			t.Error("a limit ended that had not begun")
		}
		l.Failed("a", noon)
		l.Failed("b", noon)
		if l.Failed("c", noon) {
			t.Error("the failure that begins the limit uses up no retry")
		}
		if !limited() || !l.Failed("c", noon.Add(time.Minute)) {
			t.Error("not limited after three failures")
		}
		if got := l.Until(noon.Add(time.Minute + 4*time.Second)); got != 6*time.Second {
			t.Errorf("the next attempt is due in %v, want 6s", got)
		}
		if got := l.Until(noon.Add(time.Hour)); got != 0 {
			t.Errorf("the next attempt is due in %v", got)
		}
		if !l.Succeeded() || limited() || l.Until(noon) != 0 {
			t.Error("a success did not end the limit")
		}
	}
}

func TestOneMessageAloneDoesNotBeginALimit(t *testing.T) {
	l := Limiter{RateLimit: recoverability.RateLimit{After: 3}}
	for range 100 {
		if l.Failed("a", noon) {
			t.Fatal("limited")
		}
	}
	if l.Failed("a", noon.Add(recoverability.DefaultRateLimitDelay)); l.Until(noon) != 0 {
		t.Error("limited by the failures of one message within Wait")
	}
	l.Failed("b", noon)
	if since, n := l.Limited(); since.IsZero() || n != 102 {
		t.Errorf("limited since %v after %d failures, with two messages that fail", since, n)
	}
}

func TestFailuresOfOneMessageOverMoreThanWaitBeginALimit(t *testing.T) {
	l := Limiter{RateLimit: recoverability.RateLimit{After: 3, Delay: time.Second}}
	l.Failed("a", noon)
	l.Failed("a", noon)
	l.Succeeded()
	for n := range 3 {
		if since, _ := l.Limited(); !since.IsZero() {
			t.Errorf("limited after %d failures", n)
		}
		l.Failed("a", noon.Add(time.Duration(n)*time.Second))
	}
	if since, n := l.Limited(); since.IsZero() || n != 3 {
		t.Errorf("limited since %v after %d failures", since, n)
	}
}

func TestThrottledFailuresAreExhaustedByNumberAndByTime(t *testing.T) {
	for _, c := range []struct {
		limit recoverability.RateLimit
		of    Throttled
		want  bool
	}{
		{of: Throttled{}},
		{of: Throttled{Failures: 9, Since: noon}},
		{of: Throttled{Failures: 10, Since: noon}, want: true},
		{of: Throttled{Failures: 1, Since: noon.Add(time.Second - 15*time.Minute)}},
		{of: Throttled{Failures: 1, Since: noon.Add(-15 * time.Minute)}, want: true},
		{limit: recoverability.RateLimit{MaxFailures: 2}, of: Throttled{Failures: 2, Since: noon}, want: true},
		{limit: recoverability.RateLimit{MaxTime: time.Hour}, of: Throttled{Failures: 1, Since: noon.Add(-30 * time.Minute)}},
	} {
		if got := (&Limiter{RateLimit: c.limit}).Exhausted(c.of, noon); got != c.want {
			t.Errorf("%+v of %+v: exhausted is %t", c.of, c.limit, got)
		}
	}
	h := DeferHeaders(header.Map{}, 0, Throttled{}.Add(noon).Add(noon.Add(time.Minute)))
	if got := ThrottledFailures(h, noon.Add(time.Hour)); got != (Throttled{Failures: 2, Since: noon}) {
		t.Errorf("the copy tells of %+v", got)
	}
	if got := ThrottledFailures(h, noon.Add(-time.Hour)).Since; !got.Equal(noon.Add(-time.Hour)) {
		t.Errorf("of a clock that is ahead: %v", got)
	}
	if h := DeferHeaders(h, 0, Throttled{}); h.Len() != 0 {
		t.Errorf("headers of a copy without such failures: %v", h)
	}
	h.Set(header.HoldfastThrottledSince, "yesterday")
	if got := ThrottledFailures(h, noon); got.Failures != 2 || !got.Since.Equal(noon) {
		t.Errorf("of a time that makes no sense: %+v", got)
	}
}

func TestADeferralGrowsWithTheOutageUpToABound(t *testing.T) {
	l := Limiter{RateLimit: recoverability.RateLimit{After: 2, Delay: 4 * time.Second}}
	l.Failed("a", noon)
	l.Failed("b", noon)
	for lasted, want := range map[time.Duration]time.Duration{
		0: 4 * time.Second, 15 * time.Second: 4 * time.Second, time.Minute: 15 * time.Second,
		10 * time.Minute: 150 * time.Second, 24 * time.Hour: 5 * time.Minute,
	} {
		if got := l.Deferral(noon.Add(lasted)); got != want {
			t.Errorf("after %v a message is put off for %v, want %v", lasted, got, want)
		}
	}
}

func TestPostponedCopiesKeepTheirCounts(t *testing.T) {
	received := header.New(header.Field{Name: header.Retries, Value: "2"}, header.Field{Name: "Mine", Value: "x"})
	h := DeferHeaders(received, 3, Throttled{Failures: 4, Since: noon})
	if ThrottledFailures(h, noon).Failures != 4 {
		t.Errorf("headers %v", h)
	}
	if DelayedRetries(h) != 2 || UsedRetries(h) != 3 || h.Get("Mine") != "x" {
		t.Errorf("headers %v", h)
	}
	if DeferHeaders(received, 0, Throttled{}).Len() != 2 {
		t.Error("none used up is written down")
	}
	for name, h := range map[string]header.Map{
		"a delayed retry": DelayHeaders(recoverability.Failure{Headers: h}, header.Map{}),
		"a move to error": ErrorHeaders(h, header.Map{}),
	} {
		if UsedRetries(h) != 0 || ThrottledFailures(h, noon).Failures != 0 {
			t.Errorf("after %s the cycle goes on", name)
		}
	}
	for _, nonsense := range []string{"", "-1", "x", "99999999999999999999"} {
		if n := UsedRetries(header.New(header.Field{Name: header.HoldfastUsedRetries, Value: nonsense})); n != 0 {
			t.Errorf("%q is %d", nonsense, n)
		}
	}
}
