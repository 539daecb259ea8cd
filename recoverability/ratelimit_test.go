package recoverability_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestALimitBeginsAfterFailuresInARowAndEndsWithASuccess(t *testing.T) {
	l := recoverability.Limiter{RateLimit: recoverability.RateLimit{After: 3, Wait: 10 * time.Second}}
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
	l := recoverability.Limiter{RateLimit: recoverability.RateLimit{After: 3}}
	for range 100 {
		if l.Failed("a", noon) {
			t.Fatal("limited")
		}
	}
	l.Failed("b", noon)
	if since, n := l.Limited(); since.IsZero() || n != 101 {
		t.Errorf("limited since %v after %d failures, with two messages that fail", since, n)
	}
}

func TestADeferralGrowsWithTheOutageUpToABound(t *testing.T) {
	l := recoverability.Limiter{RateLimit: recoverability.RateLimit{After: 2, Wait: 4 * time.Second}}
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

func TestARateLimitIsValidated(t *testing.T) {
	for want, limit := range map[string]recoverability.RateLimit{
		"After is -1":           {After: -1},
		"Wait is negative":      {After: 3, Wait: -1},
		"Scope is 2":            {After: 3, Scope: 2},
		"Scope is -1":           {After: 3, Scope: -1},
		"After is not set, and": {Wait: time.Second},
	} {
		err := recoverability.Config{RateLimit: limit}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", limit, err, want)
		}
	}
	for _, limit := range []recoverability.RateLimit{{}, {After: 1}, {After: 9, Wait: time.Hour, Scope: recoverability.ByType}} {
		if err := (recoverability.Config{RateLimit: limit}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFailureThatNothingMendsSaysNothingOfAnOutage(t *testing.T) {
	bad := errors.New("bad")
	c := recoverability.Config{
		Unrecoverable: []recoverability.Matcher{recoverability.Is(bad)},
		Rules:         []recoverability.Rule{{Types: []string{"Old"}, Action: recoverability.Discard{}}},
	}
	for _, f := range []recoverability.Failure{
		{Err: bad}, {Err: recoverability.Unrecoverable(errors.New("no"))}, {Err: errors.New("no"), Type: "Old"},
	} {
		if f.Config = c; f.Mendable() {
			t.Errorf("%v of type %q counts", f.Err, f.Type)
		}
	}
	if f := (recoverability.Failure{Err: errors.New("no"), Type: "New", Config: c}); !f.Mendable() {
		t.Error("an ordinary failure does not count")
	}
}

func TestWhatIsPutOffKeepsItsCounts(t *testing.T) {
	received := header.New(header.Field{Name: header.Retries, Value: "2"}, header.Field{Name: "Mine", Value: "x"})
	h := recoverability.DeferHeaders(received, 3)
	if recoverability.DelayedRetries(h) != 2 || recoverability.UsedRetries(h) != 3 || h.Get("Mine") != "x" {
		t.Errorf("headers %v", h)
	}
	if recoverability.DeferHeaders(received, 0).Len() != 2 {
		t.Error("none used up is written down")
	}
	for name, h := range map[string]header.Map{
		"a delayed retry": recoverability.DelayHeaders(recoverability.Failure{Headers: h}, header.Map{}),
		"a move to error": recoverability.ErrorHeaders(h, header.Map{}),
	} {
		if recoverability.UsedRetries(h) != 0 {
			t.Errorf("after %s the cycle goes on", name)
		}
	}
	for _, nonsense := range []string{"", "-1", "x", "99999999999999999999"} {
		if n := recoverability.UsedRetries(header.New(header.Field{Name: header.HoldfastUsedRetries, Value: nonsense})); n != 0 {
			t.Errorf("%q is %d", nonsense, n)
		}
	}
}
