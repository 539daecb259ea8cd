package resiliencetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

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
		r := s.runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 3}})
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
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour, Retry: resilience.Retry{Max: 3}})
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
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour, Retry: resilience.Retry{Max: 3}})
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
	r := s.runner(resilience.Policy{Name: "p", Timeout: time.Hour, Retry: resilience.Retry{Max: 3}})
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
