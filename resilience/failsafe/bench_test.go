package failsafe_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/holdfast-go/holdfast/resilience"
	ours "github.com/holdfast-go/holdfast/resilience/failsafe"
)

var errOnce = errors.New("once")

// BenchmarkDo runs a function that fails once and then succeeds, under a policy with retries and a
// time-out.
func BenchmarkDo(b *testing.B) {
	policy := resilience.Policy{Name: "p", Timeout: time.Minute, Retry: resilience.Retry{Delay: resilience.None}}
	c, err := resilience.NewCatalog(policy)
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	run := func(b *testing.B, r resilience.Runner) {
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			if _, err := resilience.Do(ctx, r, "p", func(context.Context) (int, error) {
				if n++; n == 1 {
					return 0, errOnce
				}
				return n, nil
			}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("plain-runner", func(b *testing.B) { run(b, resilience.NewRunner(c)) })
	b.Run("failsafe-runner", func(b *testing.B) { run(b, ours.NewRunner(c)) })
	b.Run("failsafe-go", func(b *testing.B) {
		b.ReportAllocs()
		executor := failsafe.With(
			retrypolicy.NewBuilder[int]().WithMaxRetries(3).ReturnLastFailure().Build(),
			timeout.New[int](time.Minute),
		)
		for b.Loop() {
			n := 0
			if _, err := executor.WithContext(ctx).Get(func() (int, error) {
				if n++; n == 1 {
					return 0, errOnce
				}
				return n, nil
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("by-hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range 4 {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				n++
				err := error(nil)
				if n == 1 {
					err = errOnce
				}
				cancel()
				if err == nil || ctx.Err() != nil && ctx.Err() != context.Canceled {
					break
				}
			}
		}
	})
}
