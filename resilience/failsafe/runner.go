// Package failsafe runs the policies of package resilience on failsafe-go. It behaves as the plain
// runner of package resilience does, and passes the same suite. It is for programs that use
// failsafe-go already: its circuit breakers, rate limiters and bulkheads go around the call, inside
// of the function that the runner retries.
package failsafe

import (
	"context"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/retrypolicy"

	"github.com/holdfast-go/holdfast/resilience"
)

// NewRunner returns a runner by the policies of c. The observers are called in their order.
func NewRunner(c resilience.Catalog, observers ...resilience.Observer) resilience.Runner {
	return &runner{c, observers}
}

type runner struct {
	catalog   resilience.Catalog
	observers []resilience.Observer
}

// Run implements [resilience.Runner]. failsafe-go repeats the attempts and waits between them; an
// [resilience.Execution] makes them and decides. So the time limit is that of a context with a
// deadline, a success counts although the context has ended, and no jitter exceeds the longest
// delay: failsafe-go does these otherwise.
func (r *runner) Run(ctx context.Context, policy string, fn func(context.Context) error) (err error) {
	x, err := resilience.Begin(ctx, r.catalog, policy, fn, r.observers...)
	if err != nil {
		return err
	}
	defer func() { err = x.End() }()
	var delay time.Duration
	var again bool
	retries := retrypolicy.NewBuilder[any]().
		HandleIf(func(any, error) bool { return again }).
		WithDelayFunc(func(failsafe.ExecutionAttempt[any]) time.Duration { return delay }).
		WithMaxRetries(-1). // the execution bounds them
		ReturnLastFailure().
		Build()
	return failsafe.With(retries).WithContext(x.Context()).Run(func() error {
		err := x.Attempt()
		delay, again = x.Next()
		return err
	})
}
