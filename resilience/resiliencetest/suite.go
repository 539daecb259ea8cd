// Package resiliencetest is the suite that every [resilience.Runner] passes.
package resiliencetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// NewRunner makes the runner that is tested.
type NewRunner func(c *resilience.Catalog, observers ...resilience.Observer) resilience.Runner

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

func attempts(s *suite) {
	for retries, want := range map[int][]float64{
		resilience.None: {0}, 1: {0, 1}, 3: {0, 1, 2, 3},
	} {
		r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: retries, Delay: time.Second}})
		if err := r.Run(s.Context(), "p", s.failing(never, errOrdinary)); !errors.Is(err, errOrdinary) {
			s.Errorf("%d retries: %v", retries, err)
		}
		s.at(want...)
	}
	r := s.runner(resilience.Policy{Name: "defaults"})
	if err := r.Run(s.Context(), "defaults", s.failing(3, errOrdinary)); err != nil {
		s.Errorf("a success at the last attempt: %v", err)
	}
	s.at(0, 2, 4, 6)
}

func delays(s *suite) {
	for name, test := range map[string]struct {
		retry resilience.Retry
		want  []float64
	}{
		"constant":    {resilience.Retry{Max: 3, Delay: 10 * time.Second}, []float64{0, 10, 20, 30}},
		"linear":      {resilience.Retry{Max: 3, Delay: 10 * time.Second, Backoff: resilience.Linear}, []float64{0, 10, 30, 60}},
		"exponential": {resilience.Retry{Max: 3, Delay: 10 * time.Second, Backoff: resilience.Exponential}, []float64{0, 10, 30, 70}},
		"cap": {
			resilience.Retry{Max: 3, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 15 * time.Second},
			[]float64{0, 10, 25, 40},
		},
		"at once": {resilience.Retry{Max: 2, Delay: resilience.None}, []float64{0, 0, 0}},
	} {
		r := s.runner(resilience.Policy{Name: name, Retry: test.retry})
		_ = r.Run(s.Context(), name, s.failing(never, errOrdinary)) // other rules look at the error
		s.at(test.want...)
	}
}

func jitter(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{
		Max: 1000, Delay: 10 * time.Second, Backoff: resilience.Exponential, MaxDelay: 20 * time.Second, Jitter: 0.5,
	}})
	_ = r.Run(s.Context(), "p", s.failing(never, errOrdinary)) // other rules look at the error
	differ := map[time.Duration]bool{}
	for i := 2; i < len(s.times); i++ {
		d := s.times[i] - s.times[i-1]
		differ[d] = true
		if d < 10*time.Second || d > 20*time.Second {
			s.Errorf("delay %d is %v, want one from 10 s to 20 s", i, d)
		}
	}
	if len(s.times) != 1001 || len(differ) < 100 {
		s.Errorf("%d attempts, %d different delays", len(s.times), len(differ))
	}
}

func timeoutEach(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 2, Delay: time.Second}})
	err := r.Run(s.Context(), "p", func(ctx context.Context) error {
		s.times = append(s.times, time.Since(s.began))
		if at, ok := ctx.Deadline(); !ok || time.Until(at) != time.Second {
			s.Errorf("the deadline is %v, %v", at, ok)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), resilience.ErrAttemptTimeout) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.Errorf("the context ended with %v and %v", ctx.Err(), context.Cause(ctx))
		}
		return ctx.Err()
	})
	s.at(0, 2, 4)
	timeout, ok := errors.AsType[*resilience.TimeoutError](err)
	if !ok || timeout.After != time.Second || !errors.Is(err, resilience.ErrAttemptTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("the error is %v", err)
	}
}

func timeoutWaits(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 1, Delay: time.Second}})
	var calls, running, overlaps atomic.Int32 // a runner that does not wait makes attempts at once
	_ = r.Run(s.Context(), "p", func(context.Context) error {
		if calls.Add(1); running.Add(1) > 1 {
			overlaps.Add(1)
		}
		defer running.Add(-1)
		time.Sleep(5 * time.Second) // it ignores its context
		return errOrdinary
	})
	if took := time.Since(s.began); took != 11*time.Second || calls.Load() != 2 || overlaps.Load() != 0 {
		s.Errorf("%d calls in %v, of which %d began during another one: want 2 in 11s, one after the other", calls.Load(), took, overlaps.Load())
	}
	time.Sleep(5 * time.Second) // for attempts that were abandoned
}

func lateSuccess(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second})
	calls := 0
	err := r.Run(s.Context(), "p", func(context.Context) error {
		calls++
		time.Sleep(5 * time.Second)
		return nil
	})
	if err != nil || calls != 1 {
		s.Errorf("%d calls, %v", calls, err)
	}
}

func deadlineInside(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour, Retry: resilience.Retry{Max: 1, Delay: time.Second}})
	err := r.Run(s.Context(), "p", s.failing(1, fmt.Errorf("http: %w", context.DeadlineExceeded)))
	if err != nil {
		s.Errorf("a time-out within the function was not retried: %v", err)
	}
	s.at(0, 1)
}

type stubborn struct{ error }

func (stubborn) Retryable() bool { return false }

// canceled is context.Canceled by its method, as the error of a cancelled dial in package net.
type canceled struct{}

func (canceled) Error() string        { return "operation was canceled" }
func (canceled) Is(target error) bool { return target == context.Canceled }

func terminal(s *suite) {
	for name, err := range map[string]error{
		"cancelled":     context.Canceled,
		"wrapped":       fmt.Errorf("call: %w", context.Canceled),
		"non-retryable": resilience.NonRetryable(errOrdinary),
		"joined":        errors.Join(errors.New("first"), fmt.Errorf("second: %w", resilience.NonRetryable(errOrdinary))),
		"a method":      fmt.Errorf("call: %w", stubborn{errOrdinary}),
		"a method Is":   fmt.Errorf("dial: %w", canceled{}),
	} {
		r := s.runner(resilience.Policy{Name: "p"})
		if got := r.Run(s.Context(), "p", s.failing(never, err)); got == nil || got.Error() != err.Error() {
			s.Errorf("%s: %v, want %v", name, got, err)
		}
		s.at(0)
	}
}

func lastError(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 2}})
	var last error
	n := 0
	err := r.Run(s.Context(), "p", func(context.Context) error {
		n++
		last = fmt.Errorf("attempt %d", n)
		return last
	})
	if err != last || n != 3 { //nolint:errorlint // the very error
		s.Errorf("%d attempts, %v", n, err)
	}
}

var errStopped = errors.New("stopped by its caller")

func cancelledAttempt(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour})
	ctx, cancel := context.WithCancelCause(s.Context())
	err := r.Run(ctx, "p", func(ctx context.Context) error {
		s.times = append(s.times, time.Since(s.began))
		cancel(errStopped)
		<-ctx.Done()
		return ctx.Err()
	})
	s.at(0)
	if errors.Is(err, resilience.ErrAttemptTimeout) || !errors.Is(err, context.Canceled) {
		s.Errorf("the error is %v", err)
	}
	ctx, cancel = context.WithCancelCause(s.Context())
	err = r.Run(ctx, "p", func(context.Context) error {
		cancel(errStopped)
		return errOrdinary
	})
	if !errors.Is(err, errOrdinary) || !errors.Is(err, errStopped) {
		s.Errorf("an ordinary error after the end of the context: %v", err)
	}
}

func cancelledDelay(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Delay: time.Hour}})
	ctx, cancel := context.WithCancelCause(s.Context())
	time.AfterFunc(time.Minute, func() { cancel(errStopped) })
	err := r.Run(ctx, "p", s.failing(never, errOrdinary))
	s.at(0)
	if !errors.Is(err, errOrdinary) || !errors.Is(err, errStopped) || time.Since(s.began) != time.Minute {
		s.Errorf("after %v: %v", time.Since(s.began), err)
	}
}

func cancelledSuccess(s *suite) {
	r := s.runner(resilience.Policy{Name: "p"})
	ctx, cancel := context.WithCancel(s.Context())
	err := r.Run(ctx, "p", func(context.Context) error {
		cancel()
		return nil
	})
	if err != nil {
		s.Errorf("a success when the context ended: %v", err)
	}
}

func cancelledBefore(s *suite) {
	r := s.runner(resilience.Policy{Name: "p"})
	ctx, cancel := context.WithCancelCause(s.Context())
	cancel(errStopped)
	if err := r.Run(ctx, "p", s.failing(0, nil)); !errors.Is(err, errStopped) {
		s.Errorf("the error is %v", err)
	}
	s.at()
}

func callerDeadline(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour, Retry: resilience.Retry{Max: 5, Delay: time.Second}})
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	err := r.Run(ctx, "p", func(ctx context.Context) error {
		s.times = append(s.times, time.Since(s.began))
		<-ctx.Done()
		return ctx.Err()
	})
	s.at(0)
	if errors.Is(err, resilience.ErrAttemptTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("the error is %v", err)
	}
}

func panics(s *suite) {
	r := s.runner(resilience.Policy{Name: "p"})
	calls := 0
	func() {
		defer func() {
			if v := recover(); v != "here" {
				s.Errorf("the panic is %v", v)
			}
		}()
		_ = r.Run(s.Context(), "p", func(context.Context) error { // it does not return
			calls++
			panic("here")
		})
		s.Error("Run returned after a panic")
	}()
	if calls != 1 {
		s.Errorf("%d calls", calls)
	}
}

// circular is an error that wraps itself.
type circular struct{}

func (c circular) Error() string { return "circular" }
func (c circular) Unwrap() error { return c }

// explosive is an error whose methods panic, and that cannot be compared.
type explosive []int

func (explosive) Error() string   { return "explosive" }
func (explosive) Unwrap() error   { panic("unwrap") }
func (explosive) Retryable() bool { panic("retryable") }

func oddErrors(s *suite) {
	for name, err := range map[string]error{"circular": circular{}, "explosive": explosive{}} {
		r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 1, Delay: time.Second}})
		if got := r.Run(s.Context(), "p", s.failing(never, err)); got == nil || got.Error() != name {
			s.Errorf("%s: %v", name, got)
		}
		s.at(0, 1)
	}
}

func unknown(s *suite) {
	r := s.runner(resilience.Policy{Name: "known"})
	err := r.Run(s.Context(), "other", s.failing(0, nil))
	if err == nil || !strings.Contains(err.Error(), "other") || !strings.Contains(err.Error(), "known") {
		s.Errorf("the error is %v", err)
	}
	s.at()
	if err := r.Run(s.Context(), "known", nil); err == nil {
		s.Error("a nil function is no error")
	}
}

func value(s *suite) {
	r := s.runner(resilience.Policy{Name: "p"})
	n := 0
	got, err := resilience.Do(s.Context(), r, "p", func(context.Context) (string, error) {
		if n++; n == 1 {
			return "wrong", errOrdinary
		}
		return "rejected", nil // a failure as a value is a success
	})
	if got != "rejected" || err != nil || n != 2 {
		s.Errorf("%d calls, %q, %v", n, got, err)
	}
}

func attemptNumber(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 2}})
	var got []string
	_ = r.Run(s.Context(), "p", func(ctx context.Context) error {
		n, most := resilience.Attempt(ctx)
		got = append(got, fmt.Sprintf("%d of %d", n, most))
		return errOrdinary
	})
	if want := []string{"1 of 3", "2 of 3", "3 of 3"}; !slices.Equal(got, want) {
		s.Errorf("attempts %v, want %v", got, want)
	}
}

func concurrent(s *suite) {
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 2, Jitter: 0.5}})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			left := 2
			err := r.Run(s.Context(), "p", func(context.Context) error {
				if left--; left >= 0 {
					return errOrdinary
				}
				return nil
			})
			if err != nil {
				s.Errorf("the error is %v", err)
			}
		})
	}
	wg.Wait()
}

// observation records what an observer is told.
type observation struct{ lines []string }

type observedKey struct{}

func (o *observation) Begin(ctx context.Context, p resilience.Policy) (context.Context, resilience.Observation) {
	o.lines = append(o.lines, "begin "+p.Name)
	return context.WithValue(ctx, observedKey{}, o), o
}

func (o *observation) Retry(n int, delay time.Duration, err error) {
	o.lines = append(o.lines, fmt.Sprintf("retry %d after %v: %v", n, delay, err))
}

func (o *observation) Timeout(n int, limit time.Duration) {
	o.lines = append(o.lines, fmt.Sprintf("attempt %d timed out after %v", n, limit))
}

func (o *observation) End(outcome resilience.Outcome, err error) {
	o.lines = append(o.lines, fmt.Sprintf("end %s: %v", outcome, err))
}

func observed(s *suite) {
	policy := resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 2, Delay: 5 * time.Second}}
	o := &observation{}
	r := s.observedRunner(o, policy)
	n := 0
	err := r.Run(s.Context(), "p", func(ctx context.Context) error {
		if ctx.Value(observedKey{}) != o {
			s.Error("the context is not the observer's")
		}
		switch n++; n {
		case 1:
			return errOrdinary
		case 2:
			<-ctx.Done()
			return errors.New("late")
		}
		return nil
	})
	want := []string{
		"begin p", "retry 1 after 5s: ordinary", "attempt 2 timed out after 1s",
		"retry 2 after 5s: the attempt has timed out after 1s: late", "end success: <nil>",
	}
	if err != nil || !slices.Equal(o.lines, want) {
		s.Errorf("%v\n%s\nwant\n%s", err, strings.Join(o.lines, "\n"), strings.Join(want, "\n"))
	}
	o.lines = nil
	_ = r.Run(s.Context(), "p", s.failing(never, resilience.NonRetryable(errOrdinary)))
	ctx, cancel := context.WithCancelCause(s.Context())
	_ = r.Run(ctx, "p", func(context.Context) error {
		cancel(errStopped)
		return errStopped
	})
	want = []string{"begin p", "end failed: ordinary", "begin p", "end cancelled: stopped by its caller"}
	if !slices.Equal(o.lines, want) {
		s.Errorf("%s\nwant\n%s", strings.Join(o.lines, "\n"), strings.Join(want, "\n"))
	}
}
