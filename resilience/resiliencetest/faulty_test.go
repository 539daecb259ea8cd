package resiliencetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// recorder is a test whose failures are recorded.
type recorder struct {
	testing.TB
	failures int
}

func (r *recorder) Error(...any)          { r.failures++ }
func (r *recorder) Errorf(string, ...any) { r.failures++ }
func (r *recorder) Fatal(...any) {
	r.failures++
	runtime.Goexit()
}

// runnerFunc is a runner by one function.
type runnerFunc func(ctx context.Context, policy string, fn func(context.Context) error) error

func (f runnerFunc) Run(ctx context.Context, policy string, fn func(context.Context) error) error {
	return f(ctx, policy, fn)
}

// loop makes attempts itself, by functions of the fault.
type loop struct {
	attempts int // in place of those of the policy, unless 0
	delay    func(p resilience.Policy, n int) time.Duration
	attempt  func(ctx context.Context, p resilience.Policy, fn func(context.Context) error) error
	again    func(ctx context.Context, err error) bool
	result   func(ctx context.Context, err error, waiting bool) error
}

func (l loop) newRunner(c resilience.Catalog, _ ...resilience.Observer) resilience.Runner {
	return runnerFunc(func(ctx context.Context, name string, fn func(context.Context) error) error {
		p, ok := c.Policy(name)
		if !ok {
			return fmt.Errorf("no policy %q of %v", name, c)
		}
		most := p.Retries() + 1
		if l.attempts > 0 {
			most = l.attempts
		}
		for n := 1; ; n++ {
			err := l.attempt(resilience.WithAttempt(ctx, n, most), p, fn)
			if err == nil || n == most || !l.again(ctx, err) {
				return l.result(ctx, err, false)
			}
			select {
			case <-time.After(l.delay(p, n)):
			case <-ctx.Done():
				return l.result(ctx, err, true)
			}
		}
	})
}

// sound is a loop without a fault, as far as the rules of its faults ask.
func sound() loop {
	return loop{
		delay: func(p resilience.Policy, n int) time.Duration { return p.DelayFor(n, nil) },
		attempt: func(ctx context.Context, p resilience.Policy, fn func(context.Context) error) error {
			if p.Timeout == 0 {
				return fn(ctx)
			}
			ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, resilience.ErrAttemptTimeout)
			defer cancel()
			err := fn(ctx)
			if err != nil && errors.Is(context.Cause(ctx), resilience.ErrAttemptTimeout) {
				return &resilience.TimeoutError{After: p.Timeout, Err: err}
			}
			return err
		},
		again: func(ctx context.Context, err error) bool {
			timedOut := errors.Is(err, resilience.ErrAttemptTimeout)
			return ctx.Err() == nil && !resilience.IsNonRetryable(err) && (timedOut || !errors.Is(err, context.Canceled))
		},
		result: func(ctx context.Context, err error, waiting bool) error {
			if waiting {
				return errors.Join(context.Cause(ctx), err)
			}
			return err
		},
	}
}

// A fault is found by the rule that it is named for, and the loop without a fault keeps that rule.
func TestEveryFaultIsFoundByItsRule(t *testing.T) {
	for _, fault := range []struct {
		rule, what string
		spoil      func(l *loop)
	}{
		{"attempts", "one attempt too many", func(l *loop) { l.attempts = 5 }},
		{"delays", "the cap is ignored", func(l *loop) {
			l.delay = func(p resilience.Policy, n int) time.Duration {
				p.Retry.MaxDelay = 0
				return p.DelayFor(n, nil)
			}
		}},
		{"jitter", "jitter goes upwards", func(l *loop) {
			l.delay = func(p resilience.Policy, n int) time.Duration {
				d := p.DelayFor(n, nil)
				return d + d/4
			}
		}},
		{"jitter", "there is no jitter", func(l *loop) {
			l.delay = func(p resilience.Policy, n int) time.Duration {
				p.Retry.Jitter = 0
				return p.DelayFor(n, nil)
			}
		}},
		{"timeout-each", "the context has no deadline", func(l *loop) {
			l.attempt = func(ctx context.Context, p resilience.Policy, fn func(context.Context) error) error {
				ctx, cancel := context.WithCancelCause(ctx)
				defer time.AfterFunc(p.Timeout, func() { cancel(resilience.ErrAttemptTimeout) }).Stop()
				return fn(ctx)
			}
		}},
		{"timeout-waits", "a late attempt is abandoned", func(l *loop) {
			l.attempt = func(ctx context.Context, p resilience.Policy, fn func(context.Context) error) error {
				done := make(chan error, 1)
				go func() { done <- fn(ctx) }()
				select {
				case err := <-done:
					return err
				case <-time.After(p.Timeout):
					return resilience.ErrAttemptTimeout
				}
			}
		}},
		{"late-success", "a late success is a failure", func(l *loop) {
			attempt := l.attempt
			l.attempt = func(ctx context.Context, p resilience.Policy, fn func(context.Context) error) error {
				began := time.Now()
				err := attempt(ctx, p, fn)
				if time.Since(began) > p.Timeout {
					return resilience.ErrAttemptTimeout
				}
				return err
			}
		}},
		{"deadline-inside", "a time-out within the function is final", func(l *loop) {
			l.again = func(_ context.Context, err error) bool { return !errors.Is(err, context.DeadlineExceeded) }
		}},
		{"terminal", "each error is retried", func(l *loop) { l.again = func(context.Context, error) bool { return true } }},
		{"terminal", "errors are compared, not asked", func(l *loop) {
			again := l.again
			l.again = func(ctx context.Context, err error) bool {
				var c canceled
				return errors.As(err, &c) || again(ctx, err)
			}
		}},
		{"last-error", "the last error is wrapped", func(l *loop) {
			l.result = func(_ context.Context, err error, _ bool) error { return fmt.Errorf("retries exceeded: %w", err) }
		}},
		{"cancelled-attempt", "the caller's cancellation is a time-out", func(l *loop) {
			l.result = func(ctx context.Context, err error, _ bool) error {
				if ctx.Err() != nil {
					return resilience.ErrAttemptTimeout
				}
				return err
			}
		}},
		{"cancelled-delay", "the last error is lost", func(l *loop) {
			l.result = func(ctx context.Context, err error, waiting bool) error {
				if waiting {
					return context.Cause(ctx)
				}
				return err
			}
		}},
		{"cancelled-success", "a success is dropped when the context has ended", func(l *loop) {
			l.result = func(ctx context.Context, err error, _ bool) error { return errors.Join(ctx.Err(), err) }
		}},
		{"value", "the first value is returned", func(l *loop) { l.attempts = 1 }},
		{"attempt-number", "attempts have no number", func(l *loop) {
			l.attempt = func(ctx context.Context, _ resilience.Policy, fn func(context.Context) error) error {
				return fn(resilience.WithAttempt(ctx, 0, 0))
			}
		}},
		{"cancelled-before", "an attempt is made although the context has ended", func(*loop) {}},
		{"caller-deadline", "the caller's deadline is a time-out", func(l *loop) {
			l.result = func(ctx context.Context, err error, _ bool) error {
				if ctx.Err() != nil {
					return &resilience.TimeoutError{After: time.Hour, Err: err}
				}
				return err
			}
		}},
		{"panic", "a panic becomes an error", func(l *loop) {
			l.attempt = func(ctx context.Context, _ resilience.Policy, fn func(context.Context) error) (err error) {
				defer func() {
					if v := recover(); v != nil {
						err = fmt.Errorf("panic: %v", v)
					}
				}()
				return fn(ctx)
			}
		}},
		{"odd-errors", "an odd error is final", func(l *loop) { l.again = func(context.Context, error) bool { return false } }},
		{"unknown", "a nil function is a success", func(l *loop) {
			l.attempt = func(context.Context, resilience.Policy, func(context.Context) error) error { return nil }
		}},
		{"observed", "observers are not called", func(*loop) {}},
	} {
		t.Run(fault.rule+"/"+fault.what, func(t *testing.T) {
			spoilt := sound()
			fault.spoil(&spoilt)
			if n := failures(t, fault.rule, spoilt.newRunner); n == 0 {
				t.Error("the rule did not notice")
			}
		})
	}
}

func TestTheLoopOfTheFaultsIsSound(t *testing.T) {
	for _, rule := range []string{
		"attempts", "delays", "jitter", "timeout-each", "timeout-waits", "late-success", "deadline-inside", "terminal", "last-error",
		"cancelled-delay", "cancelled-success", "value", "attempt-number",
	} {
		if n := failures(t, rule, sound().newRunner); n != 0 {
			t.Errorf("%s: %d failures", rule, n)
		}
	}
}

// failures returns the number of failures of a rule.
func failures(t *testing.T, name string, newRunner NewRunner) (n int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		record := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, r := range rules {
				if r.name == name {
					r.check(&suite{TB: record, newRunner: newRunner})
				}
			}
		}()
		<-done
		time.Sleep(time.Minute) // for abandoned attempts
		n = record.failures
	})
	return n
}
