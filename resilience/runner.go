package resilience

import (
	"context"
	"time"
)

// Runner calls functions by policies. It is safe for concurrent use. A Runner is for calls: the
// endpoint retries messages and jobs itself, by rules and by recoverability.Config.Policies,
// whatever Runner the program has.
type Runner interface {
	// Run calls fn until it returns nil, at most as often as the policy with that name allows.
	//
	// The context of an attempt has the deadline of the policy's Timeout, and ends with ctx. Run
	// waits for fn also when its time is over: fn must observe its context. An attempt that returns
	// nil is a success, however late. One that returns an error after its time was over has failed
	// with a [*TimeoutError].
	//
	// There is no retry after an error that [NonRetryable] marks, after one that wraps
	// [context.Canceled], and when ctx has ended. Then, and after the last retry, Run returns the
	// error of the last attempt as it is. If ctx has ended, the error wraps the cause of ctx too. A
	// panic of fn is not recovered. An unknown policy is an error, and fn is not called.
	Run(ctx context.Context, policy string, fn func(context.Context) error) error
}

// NewRunner returns a Runner by the policies of c. The observers are called in their order; nil
// ones are left out.
func NewRunner(c Catalog, observers ...Observer) Runner { return &runner{c, observers} }

type runner struct {
	catalog   Catalog
	observers []Observer
}

func (r *runner) Run(ctx context.Context, policy string, fn func(context.Context) error) (err error) {
	x, err := Begin(ctx, r.catalog, policy, fn, r.observers...)
	if err != nil {
		return err
	}
	defer func() { err = x.End() }()
	for x.Attempt() != nil {
		delay, again := x.Next()
		if !again || !wait(x.Context(), delay) {
			break
		}
	}
	return nil // End returns the error
}

// wait waits for d. It reports false when ctx has ended first.
func wait(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Do is [Runner.Run] for a function with a result. T is not looked at: a failure that fn returns as
// a value is a success. After an error the result is that of the last attempt.
func Do[T any](ctx context.Context, r Runner, policy string, fn func(context.Context) (T, error)) (T, error) {
	var result T
	if fn == nil {
		return result, r.Run(ctx, policy, nil)
	}
	err := r.Run(ctx, policy, func(ctx context.Context) (err error) {
		result, err = fn(ctx)
		return err
	})
	return result, err
}
