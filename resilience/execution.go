package resilience

import (
	"context"
	"errors"
	"time"
)

// Execution is one execution of a policy, for implementations of [Runner]: it makes the attempts,
// decides on retries, and calls the observers. The runner waits between the attempts. An Execution
// is not safe for concurrent use.
type Execution struct {
	ctx          context.Context //nolint:containedctx // an Execution is one call
	policy       Policy
	fn           func(context.Context) error
	observations []Observation
	n            int // attempts made
	err          error
	waiting      bool // for the next attempt
}

// ErrPanicked is the error of [Observation.End] after a panic of the function. The panic continues.
var ErrPanicked = errors.New("the function panicked")

// Begin begins an execution of fn by the policy of c with that name. It fails if c has no such
// policy, if that of a Catalog other than [Policies] is invalid, and if ctx has ended.
// [Execution.End] must be called, deferred, so that it is called after a panic too.
func Begin(
	ctx context.Context, c Catalog, policy string, fn func(context.Context) error, observers ...Observer,
) (*Execution, error) {
	p, err := find(c, policy)
	switch {
	case err != nil:
		return nil, err
	case fn == nil:
		return nil, errors.New("resilience: the function is nil")
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	x := &Execution{ctx: ctx, policy: p, fn: fn}
	for _, o := range observers {
		if o == nil {
			continue
		}
		var observation Observation
		x.ctx, observation = o.Begin(x.ctx, p) //nolint:fatcontext // a layer for each observer
		x.observations = append(x.observations, observation)
	}
	return x, nil
}

// Context returns the context of the attempts, which ends with that of Begin.
func (x *Execution) Context() context.Context { return x.ctx }

// Attempt makes one attempt, waits for it to end, and returns its error.
func (x *Execution) Attempt() error {
	x.n, x.err, x.waiting = x.n+1, ErrPanicked, false
	x.err = x.attempt(WithAttempt(x.ctx, x.n, x.policy.Retries()+1))
	return x.err
}

// attempt calls the function, with a limit to its time where there is one.
func (x *Execution) attempt(ctx context.Context) error {
	limit := x.policy.Timeout
	if limit <= 0 {
		return x.fn(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrAttemptTimeout)
	defer cancel()
	err := x.fn(ctx)
	if err == nil || x.ctx.Err() != nil || context.Cause(ctx) != ErrAttemptTimeout { //nolint:errorlint // the very cause given above
		return err
	}
	for _, o := range x.observations {
		o.Timeout(x.n, limit)
	}
	return &TimeoutError{limit, err}
}

// Next reports whether another attempt follows, after a delay.
func (x *Execution) Next() (delay time.Duration, again bool) {
	if x.err == nil || x.n > x.policy.Retries() || x.ctx.Err() != nil || x.terminal() {
		return 0, false
	}
	x.waiting = true
	delay = x.policy.DelayFor(x.n, nil)
	for _, o := range x.observations {
		o.Retry(x.n, delay, x.err)
	}
	return delay, true
}

// terminal reports whether the error of the last attempt allows no retry. A function that returns
// the error of its context after its time-out is retried.
func (x *Execution) terminal() bool {
	timeout, ok := x.err.(*TimeoutError) //nolint:errorlint // made above
	if ok {
		return IsNonRetryable(timeout.Err)
	}
	return terminal(x.err)
}

// End ends the execution and returns the error of [Runner.Run]: nil after a success, otherwise the
// error of the last attempt. If the context has ended, the error wraps its cause too.
func (x *Execution) End() error {
	outcome, err := Failed, x.err
	cause := context.Cause(x.ctx)
	switch {
	case err == nil && !x.waiting:
		outcome = Succeeded
	case cause != nil && err != ErrPanicked: //nolint:errorlint // set above
		outcome = Cancelled
		if x.waiting || !anyIn(err, func(err error) bool { return is(err, cause) || is(err, x.ctx.Err()) }) {
			err = errors.Join(cause, err)
		}
	}
	for i := len(x.observations) - 1; i >= 0; i-- {
		x.observations[i].End(outcome, err)
	}
	return err
}
