package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
)

// bounded reports whether a message may have a policy or a time limit of its own.
func (c Config) bounded() bool {
	if len(c.Recoverability.Policies.Names()) > 0 {
		return true
	}
	for i := range c.Recoverability.Rules {
		if c.Recoverability.Rules[i].Retry.Mode != 0 {
			return true
		}
	}
	for _, m := range c.Messages {
		if m.timeout > 0 {
			return true
		}
	}
	return false
}

// invokeWithin calls the handlers of the message within the limits of its policy or type: with the
// number of the attempt in the context, and with a deadline for all handlers together. That is in
// the place of Config.HandlerTimeout.
func (a *attempt) invokeWithin(ctx context.Context, l *pipeline.Logical) error {
	typ := settle.FirstType(a.Original.Headers)
	use := a.live.recoverability.RetryOf(typ, a.Original.Headers)
	if use.Mode != 0 {
		made := a.Inline
		if use.Mode == resilience.DeferredMode {
			made = fault.DelayedRetries(a.Original.Headers)
		}
		ctx = resilience.WithAttempt(ctx, made+1, use.Policy.Retries()+1)
	}
	timed, _ := a.live.recoverability.LimitOf(typ, a.Original.Headers)
	policy, limit := timed.Name, timed.Timeout
	if t := a.live.e.types.byName[l.Type]; limit == 0 && t != nil { // a behavior may have changed Type
		policy, limit = "", t.timeout
	}
	if limit == 0 {
		return a.invokeCalls(ctx, l)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, resilience.ErrAttemptTimeout)
	defer cancel()
	a.limited = true
	a.Calls.Limit(&a.Running, limit)
	defer a.Calls.Limit(&a.Running, 0)
	err := a.invokeCalls(ctx, l)
	if err != nil && errors.Is(context.Cause(ctx), resilience.ErrAttemptTimeout) {
		return &attemptTimeoutError{policy, &resilience.TimeoutError{After: limit, Err: err}}
	}
	return err
}

// attemptTimeoutError is the error of an attempt whose time was over when its handlers returned.
type attemptTimeoutError struct {
	policy string // "" for the limit of a type
	err    *resilience.TimeoutError
}

func (e *attemptTimeoutError) Error() string {
	if e.policy == "" {
		return fmt.Sprintf("Message.Timeout: %v", e.err)
	}
	return fmt.Sprintf("policy %q: %v", e.policy, e.err)
}

func (e *attemptTimeoutError) Unwrap() error      { return e.err }
func (e *attemptTimeoutError) FaultClass() string { return recoverability.ClassTimeout }
