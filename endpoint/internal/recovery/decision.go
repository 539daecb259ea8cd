package recovery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// failure counts the failure, and returns the facts by which the policy decides.
func (r *Failed) failure(err error) recoverability.Failure {
	f := r.Facts(err)
	known, _ := r.Failures.Known(r.FailureKey())
	if r.Inline == 0 { // a delivery counts once
		first := r.Exclusive == nil && f.AttemptExact && f.Attempt == 1
		known = r.Failures.Count(r.FailureKey(), f.Now, first)
	}
	if known.Since.Before(f.FirstFailure) { // in the first cycle only this process knows
		f.FirstFailure = known.Since
	}
	f.Handled, f.Lost, f.History = known.Failed, known.Lost, append(f.History, known.Past...)
	switch {
	case r.Exclusive != nil:
		f.Quarantined = r.Exclusive.Before
		// The failures before quarantine count: there the message is not retried at once.
		f.Immediate = max(f.Quarantined-1+f.Attempt, f.Config.Immediate+1, f.Config.Quarantine.After)
	case !f.AttemptExact:
		f.Immediate = known.Failed + fault.UsedRetries(r.Original.Headers)
	}
	return f
}

// decide asks the policy. If the policy panics or decides nothing, the message moves to the error
// queue.
func (r *Failed) decide(
	ctx context.Context, f recoverability.Failure,
) (action recoverability.Action) {
	r.findPolicy(ctx, f)
	policy := r.Config.Policy
	if policy == nil {
		policy = recoverability.Failure.Decide
	}
	err := r.call(new(overdue.Call), &namePolicy, func() error {
		action = policy(f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError,
			"the recoverability policy failed: moving the message to the error queue", err)
		r.tookFallback(recoverability.FallbackError, nil)
	}
	if action == nil {
		return r.toErrorQueue()
	}
	return action
}

// faultHeaders returns the headers that a move to the error queue adds, changed by the user's
// function, which may panic.
func (r *Failed) faultHeaders(ctx context.Context, f recoverability.Failure) header.Map {
	h := fault.Headers(f, r.Host, r.at)
	h.Set(header.FailedQ, r.Names.Address(f.Queue)) // other programs return the message to that queue
	if errtree.Find[*transport.DeadLetteredError](f.Err) != nil {
		h = fault.DeadLetterHeaders(r.Original.Headers, h)
	}
	change := r.Config.FaultHeaders
	if change == nil {
		return h
	}
	changed := h.Clone()
	err := r.call(new(overdue.Call), &nameFaultHeaders, func() error {
		change(&changed, f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError,
			"Recoverability.FaultHeaders failed: the headers are not changed", err)
		return h
	}
	return changed
}

// findPolicy logs that the endpoint does not have the policy that the message names. Then the
// message is retried by the rules of its type.
func (r *Failed) findPolicy(ctx context.Context, f recoverability.Failure) {
	name := cmp.Or(f.Headers.Get(header.HoldfastPolicy), f.Headers.Get(header.HoldfastRetryPolicy))
	if name == "" {
		return
	}
	if _, ok := f.Config.NamedPolicy(name); ok {
		return
	}
	r.Log.WarnContext(ctx,
		"a message names a retry policy that the endpoint does not have: its type's retries count; "+
			"add the policy to Recoverability.Policies", slog.String("message", r.LogID()),
		slog.String("policy", errtree.Cut(name, settle.MaxLogged)))
}

// possible returns the action, or a move to the error queue if the action cannot be carried out.
func (r *Failed) possible(ctx context.Context, action recoverability.Action) recoverability.Action {
	if action == (recoverability.MoveToError{}) {
		return r.toErrorQueue()
	}
	switch a := action.(type) {
	case recoverability.Delay:
		action = recoverability.Delay{For: max(0, a.For)}
	case recoverability.RetryInline:
		action = recoverability.RetryInline{For: max(0, a.For)}
	case recoverability.MoveToError:
		action = recoverability.MoveToError{Queue: r.Names.Of(a.Queue)}
	case recoverability.Retry, recoverability.DeadLetter, recoverability.Discard:
	}
	why := r.impossible(action)
	if why == "" {
		return action
	}
	r.Log.WarnContext(ctx, "an action cannot be carried out: moving the message to the error queue",
		slog.String("message", r.LogID()), slog.Any("action", action), slog.String("reason", why))
	r.tookFallback(recoverability.FallbackError, action)
	return r.toErrorQueue()
}

// toErrorQueue returns the action for a message without another possible action.
func (r *Failed) toErrorQueue() recoverability.Action {
	return recoverability.MoveToError{Queue: r.Config.ErrorQueue}
}

// impossible returns why the transport, the transaction mode or the quarantine does not allow the
// action; "" if they do.
func (r *Failed) impossible(action recoverability.Action) string {
	noRetries := r.Exclusive.Forbids(action)
	if noRetries == "" && r.CompletedFirst() {
		noRetries = "transaction mode None has no retries"
	}
	switch a := action.(type) {
	case recoverability.Retry:
		return noRetries
	case recoverability.RetryInline:
		if until := r.HoldUntil; noRetries == "" && !until.IsZero() && time.Now().Add(a.For).After(until) {
			return "the broker would deliver the message again before the inline retry: use resilience.Deferred for its type"
		}
		return noRetries
	case recoverability.Delay:
		switch most := r.Limits.MaxDelay; {
		case noRetries != "":
			return noRetries
		case most == 0:
			return "the transport offers no delays"
		case a.For > most:
			return fmt.Sprintf("the delay is over the transport's %v", most)
		}
	case recoverability.MoveToError:
		if a.Queue == r.Queue || r.ReceivesFrom(a.Queue) {
			return "the endpoint receives from that queue, and would receive the message again at once"
		}
	case recoverability.DeadLetter:
		if _, ok := r.Received.(transport.DeadLetterer); !ok || r.CompletedFirst() {
			return "the transport has no dead-letter queue"
		}
	case recoverability.Discard:
	default:
		return fmt.Sprintf("%T is no action", action)
	}
	return ""
}
