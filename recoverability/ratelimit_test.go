package recoverability_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

func TestARateLimitIsValidated(t *testing.T) {
	for want, limit := range map[string]recoverability.RateLimit{
		"After is -1":           {After: -1},
		"Delay is negative":     {After: 3, Delay: -1},
		"MaxFailures is":        {After: 3, MaxFailures: -1},
		"MaxTime is negative":   {After: 3, MaxTime: -1},
		"Scope is 2":            {After: 3, Scope: 2},
		"Scope is -1":           {After: 3, Scope: -1},
		"After is not set, and": {Delay: time.Second},
	} {
		err := recoverability.Config{RateLimit: limit}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", limit, err, want)
		}
	}
	for _, limit := range []recoverability.RateLimit{{}, {After: 1}, {After: 9, Delay: time.Hour, Scope: recoverability.ByType}} {
		if err := (recoverability.Config{RateLimit: limit}).Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestUnrecoverableFailuresAreNotMendable(t *testing.T) {
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
