package dialect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// A step is found from the database's time and this process's, however long a claim takes.
func TestAStepOfTheClockIsFound(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pause, took time.Duration // until the second claim, and of both
		database    time.Duration // between the claims
		step        time.Duration
		back        bool
	}{
		"no step":          {pause: time.Second, database: time.Second},
		"a slow claim":     {pause: time.Second, took: 30 * time.Second, database: time.Second},
		"a slow answer":    {pause: time.Second, took: 30 * time.Second, database: 61 * time.Second},
		"little back":      {pause: time.Second, database: -4 * time.Second},
		"back":             {pause: time.Second, database: -3599 * time.Second, step: -time.Hour, back: true},
		"back by 10 s":     {pause: 20 * time.Second, database: 10 * time.Second, step: -10 * time.Second, back: true},
		"back, found late": {pause: time.Minute, database: -3540 * time.Second, step: -time.Hour},
		"little forward":   {pause: time.Second, database: 6 * time.Second},
		"forward":          {pause: time.Second, database: 3601 * time.Second, step: time.Hour},
		"forward and slow": {pause: time.Second, took: time.Second, database: 3603 * time.Second, step: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var c Clock
			here, there := time.Now(), time.Unix(1e9, 0)
			if step, _ := c.observe(there, here, here.Add(tt.took)); step != 0 {
				t.Errorf("the first claim has found a step of %v", step)
			}
			asked := here.Add(tt.took + tt.pause)
			answered := asked.Add(tt.took)
			step, back := c.observe(there.Add(tt.database), asked, answered)
			if step != tt.step || back != tt.back {
				t.Errorf("a step of %v (back: %t), want %v (%t)", step, back, tt.step, tt.back)
			}
			want := foundStep{}
			if tt.back {
				want = foundStep{1, -tt.step, there.Add(tt.pause), answered}
			}
			if back := c.lastBack(); back != want {
				t.Errorf("the last step back is %v, want %v", back, want)
			}
		})
	}
}

// stepped is a Clock whose database is a list of calls of Restore.
type stepped struct {
	Clock
	here, there time.Time // the times of the process and of the database
	calls       []string  // of Restore
	answers     []int64   // of Restore; -1 is an error. Without an answer: 1
	log         strings.Builder
}

func newStepped() *stepped {
	s := &stepped{here: time.Now(), there: time.Unix(1e9, 0)}
	s.Log, s.MaxRestored = slog.New(slog.NewTextHandler(&s.log, nil)), 10
	s.Restore = func(_ context.Context, queue string, step StepBack) (int64, error) {
		leases := "no lease"
		if step.Leases < never {
			leases = "leases over " + step.Leases.String()
		}
		s.calls = append(s.calls, fmt.Sprintf("%s by %v, %s", queue, step.By, leases))
		n := int64(1)
		if len(s.answers) > 0 {
			n, s.answers = s.answers[0], s.answers[1:]
		}
		if n < 0 {
			return 0, errors.New("no answer")
		}
		return n, nil
	}
	return s
}

// pass has time pass on both clocks.
func (s *stepped) pass(d time.Duration) { s.here, s.there = s.here.Add(d), s.there.Add(d) }

// claims has queues claimed from, and checks the calls of Restore.
func (s *stepped) claims(t *testing.T, queues, want string) {
	t.Helper()
	s.calls = nil
	for _, queue := range strings.Fields(queues) {
		before := len(s.calls)
		restored := s.Follow(t.Context(), queue, time.Minute, s.there, s.here, s.here)
		if restored && len(s.calls) == before {
			t.Errorf("a claim of %s reports restored rows, and there are none", queue)
		}
	}
	slices.Sort(s.calls)
	if got := strings.Join(s.calls, "; "); got != want {
		t.Errorf("after claims of %s, restored are %q, want %q", queues, got, want)
	}
}

func TestAStepBackRestoresEachQueueOnce(t *testing.T) {
	s := newStepped()
	s.claims(t, "a b a", "")
	s.there = s.there.Add(-time.Hour)
	s.claims(t, "a", "a by 1h0m0s, leases over 30m0s; b by 1h0m0s, leases over 30m0s")
	s.claims(t, "a b", "")
	s.pass(50 * time.Second)
	s.claims(t, "a c", "c by 1h0m0s, leases over 30m0s") // c is claimed from for the first time
	s.pass(20 * time.Second)
	s.claims(t, "b d", "") // a minute after the step
	s.there = s.there.Add(-10 * time.Second)
	s.claims(t, "d", "a by 10s, no lease; b by 10s, no lease; c by 10s, no lease; d by 10s, no lease")
	if n := strings.Count(s.log.String(), "the clock of the database has been set back"); n != 2 {
		t.Errorf("%d lines in the log, want 2:\n%s", n, s.log.String())
	}
}

// A queue with more rows than one call restores, and one whose call fails, are restored by the next
// claims.
func TestRestoringIsContinued(t *testing.T) {
	s := newStepped()
	s.claims(t, "a", "")
	s.there = s.there.Add(-10 * time.Second)
	s.answers = []int64{10, -1, 10, 0}
	for range 4 {
		s.claims(t, "a", "a by 10s, no lease")
	}
	s.claims(t, "a", "")
}

func TestAStepForwardIsLoggedIfLeasesEnd(t *testing.T) {
	s := newStepped()
	for _, step := range []time.Duration{0, 50 * time.Second, time.Hour, 0} {
		s.there = s.there.Add(step)
		s.claims(t, "a", "")
	}
	const want = "the clock of the database has been set forward"
	if log := s.log.String(); strings.Count(log, want) != 1 || strings.Count(log, "\n") != 1 {
		t.Errorf("the log is %q, want one line: %s", log, want)
	}
}
