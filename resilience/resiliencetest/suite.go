// Package resiliencetest is the suite that every [resilience.Runner] passes.
package resiliencetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// NewRunner makes the runner that is tested.
type NewRunner func(c resilience.Catalog, observers ...resilience.Observer) resilience.Runner

// Run runs the rules of the suite as subtests, each in a bubble of virtual time.
func Run(t *testing.T, newRunner NewRunner) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { r.check(&suite{TB: t, newRunner: newRunner}) })
		})
	}
}

type rule struct {
	name  string
	check func(s *suite)
}

var rules = []rule{
	{"attempts", attempts},
	{"delays", delays},
	{"jitter", jitter},
	{"timeout-each", timeoutEach},
	{"timeout-waits", timeoutWaits},
	{"late-success", lateSuccess},
	{"deadline-inside", deadlineInside},
	{"terminal", terminal},
	{"last-error", lastError},
	{"cancelled-attempt", cancelledAttempt},
	{"cancelled-delay", cancelledDelay},
	{"cancelled-success", cancelledSuccess},
	{"cancelled-before", cancelledBefore},
	{"caller-deadline", callerDeadline},
	{"panic", panics},
	{"odd-errors", oddErrors},
	{"unknown", unknown},
	{"value", value},
	{"attempt-number", attemptNumber},
	{"concurrent", concurrent},
	{"observed", observed},
}

// suite is a rule that runs.
type suite struct {
	testing.TB
	newRunner NewRunner
	began     time.Time
	times     []time.Duration // of the attempts, since began
}

var errOrdinary = errors.New("ordinary")

// runner returns a runner by the policies.
func (s *suite) runner(policies ...resilience.Policy) resilience.Runner {
	s.Helper()
	return s.observedRunner(nil, policies...)
}

func (s *suite) observedRunner(o resilience.Observer, policies ...resilience.Policy) resilience.Runner {
	s.Helper()
	c, err := resilience.NewCatalog(policies...)
	if err != nil {
		s.Fatal(err)
	}
	s.began, s.times = time.Now(), nil
	if o == nil {
		return s.newRunner(c)
	}
	return s.newRunner(c, o)
}

// failing returns a function that fails with an error, a number of times.
func (s *suite) failing(times int, err error) func(context.Context) error {
	return func(context.Context) error {
		s.times = append(s.times, time.Since(s.began))
		if times--; times >= 0 {
			return err
		}
		return nil
	}
}

// at checks the times of the attempts, in seconds.
func (s *suite) at(seconds ...float64) {
	s.Helper()
	var want []time.Duration
	for _, n := range seconds {
		want = append(want, time.Duration(n*float64(time.Second)))
	}
	if !slices.Equal(s.times, want) {
		s.Errorf("attempts at %v, want %v", s.times, want)
	}
}

const never = 1 << 20
