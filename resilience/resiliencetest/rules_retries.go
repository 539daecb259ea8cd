package resiliencetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

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
	r := s.runner(
		resilience.Policy{Name: "defaults", Retry: resilience.Retry{Backoff: resilience.Constant}},
		resilience.Policy{Name: "timed", Timeout: time.Minute},
	)
	if err := r.Run(s.Context(), "defaults", s.failing(3, errOrdinary)); err != nil {
		s.Errorf("a success at the last attempt: %v", err)
	}
	s.at(0, 2, 4, 6)
	s.times = nil
	if err := r.Run(s.Context(), "timed", s.failing(never, errOrdinary)); !errors.Is(err, errOrdinary) {
		s.Errorf("a policy with a Timeout alone: %v", err)
	}
	if len(s.times) != 1 {
		s.Errorf("a policy with a Timeout alone made %d attempts, want 1", len(s.times))
	}
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
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Max: 3}})
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
