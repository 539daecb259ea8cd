package resilience_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/resilience"
)

// selfError wraps itself, twice.
type selfError struct{}

func (e *selfError) Error() string   { return "self" }
func (e *selfError) Unwrap() []error { return []error{e, e} }

// brokenError cannot be compared, and its methods panic.
type brokenError struct{ _ []int }

func (brokenError) Error() string   { panic("no text") }
func (brokenError) Unwrap() error   { panic("no error") }
func (brokenError) Is(error) bool   { panic("no answer") }
func (brokenError) Retryable() bool { panic("no answer") }

// canceledError is context.Canceled by its method, as an error of package net.
type canceledError struct{}

func (canceledError) Error() string        { return "operation was canceled" }
func (canceledError) Is(target error) bool { return target == context.Canceled }

func attempts(t *testing.T, fail error) (n int, err error) {
	t.Helper()
	err = runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Delay: resilience.None}}).
		Run(t.Context(), "p", func(context.Context) error {
			n++
			return fail
		})
	return n, err
}

func TestStrangeErrorsAreRetriedAndReturnedAsTheyAre(t *testing.T) {
	var typedNil *net.OpError
	for name, fail := range map[string]error{
		"wraps itself": &selfError{},
		"wraps nil":    fmt.Errorf("%w %w", errAway, error(nil)),
		"typed nil":    typedNil,
	} {
		n, err := attempts(t, fail)
		if n != 4 || err != fail { //nolint:errorlint // the very error
			t.Errorf("%s: %d attempts and a %T, want 4", name, n, err)
		}
	}
	n, err := attempts(t, brokenError{})
	if _, ok := err.(brokenError); n != 4 || !ok { //nolint:errorlint // the very error
		t.Errorf("an error with panicking methods: %d attempts and a %T, want 4", n, err)
	}
}

func TestMarksAreFoundInStrangeTrees(t *testing.T) {
	many := make([]error, 5000)
	for i := range many {
		many[i] = errAway
	}
	many[0] = resilience.NonRetryable(errAway)
	for name, fail := range map[string]error{
		"beside one that wraps itself": errors.Join(&selfError{}, resilience.NonRetryable(errAway)),
		"beside a broken one":          errors.Join(brokenError{}, resilience.NonRetryable(errAway)),
		"around a broken one":          resilience.NonRetryable(brokenError{}),
		"first of many":                errors.Join(many...),
		"canceled by a method":         &net.OpError{Op: "dial", Err: canceledError{}},
		"canceled beside others":       errors.Join(errAway, fmt.Errorf("get: %w", context.Canceled)),
	} {
		if n, _ := attempts(t, fail); n != 1 {
			t.Errorf("%s: %d attempts, want 1", name, n)
		}
	}
}

func TestACauseThatCannotBeComparedIsReturned(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	err := runner(resilience.Policy{Name: "p", Retry: resilience.Retry{Max: 3}}).Run(ctx, "p", func(context.Context) error {
		cancel(brokenError{})
		return errAway
	})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Fatalf("the error is a %T, want the cause and the last error", err)
	}
	if cause, ok := joined.Unwrap()[0].(brokenError); !ok { //nolint:errorlint // as it is
		t.Errorf("the first error is not the cause, but a %T", cause)
	}
}

func TestNilArgumentsAreErrors(t *testing.T) {
	ctx := t.Context()
	none := func(context.Context) error { return nil }
	if err := resilience.NewRunner(nil).Run(ctx, "p", none); err == nil {
		t.Error("a nil catalog has a policy")
	}
	quick := runner(resilience.Policy{Name: "p", Timeout: time.Minute})
	if err := quick.Run(ctx, "p", nil); err == nil {
		t.Error("a nil function was run")
	}
	if _, err := resilience.Do[int](ctx, quick, "p", nil); err == nil {
		t.Error("a nil function with a result was run")
	}
	c, err := resilience.NewCatalog(resilience.Policy{Name: "p", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := resilience.NewRunner(c, nil).Run(ctx, "p", none); err != nil {
		t.Errorf("with a nil observer: %v", err)
	}
}

func TestAMistakeInAVariableOfAPackagePanics(t *testing.T) {
	defer func() {
		if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), "two policies have that name") {
			t.Errorf("the panic is %v", err)
		}
	}()
	p := resilience.Policy{Name: "p", Timeout: time.Minute}
	if all := resilience.MustCatalog(p).All(); len(all) != 1 || all[0] != p {
		t.Errorf("the catalog has %+v", all)
	}
	resilience.MustCatalog(p, p)
}

func TestThousandsOfCallsShareARunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runner(resilience.Policy{Name: "p", Timeout: time.Second, Retry: resilience.Retry{Delay: time.Minute, Jitter: 0.5}})
		var all sync.WaitGroup
		var calls atomic.Int64
		for i := range 5000 {
			all.Go(func() {
				got, err := resilience.Do(t.Context(), r, "p", func(ctx context.Context) (int, error) {
					calls.Add(1)
					if n, _ := resilience.Attempt(ctx); n < 3 {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return i, nil
				})
				if err != nil || got != i {
					t.Errorf("call %d returned %d, %v", i, got, err)
				}
			})
		}
		all.Wait()
		if calls.Load() != 15_000 {
			t.Errorf("%d attempts, want 15000", calls.Load())
		}
	})
}
