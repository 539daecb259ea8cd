package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// conclude carries out the action. Before one that gives the message up, it calls
// Config.OnFinalFailure.
func (r *recovery) conclude(ctx context.Context, rec *pipeline.Recover) error {
	rec.Action = r.possible(ctx, rec.Action)
	switch rec.Action.(type) {
	case recoverability.Retry, recoverability.RetryInline, recoverability.Delay:
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
		if err := r.onFinalFailure(ctx, rec.Failure); err != nil {
			return err
		}
	}
	return r.carryOut(ctx, rec)
}

// onFinalFailure calls the user's function, once. When that fails, the operations that it sent are
// left out; an error is returned when it may have written in the transaction, which cannot be
// undone in part.
func (r *recovery) onFinalFailure(ctx context.Context, failure recoverability.Failure) error {
	f := r.e.cfg.OnFinalFailure
	if f == nil || r.finalised {
		return nil
	}
	r.finalised = true
	before, err := r.session.begin(ctx, work.AllHandlers)
	if err != nil {
		return err
	}
	err = r.asFunction(new(overdue.Call), &nameOnFinalFailure, func() error { return f(ctx, r.session, failure) })
	if err == nil {
		return nil
	}
	r.LogError(ctx, slog.LevelError, "Config.OnFinalFailure failed: its messages and writes are discarded", err)
	if _, tx := r.session.unit.End(); tx != nil { // no goroutine of the function sends any more
		return &copies.ProgramError{Mark: errtree.Mark{Err: err}}
	}
	r.session.drop(before)
	return nil
}

// carryOut carries out rec.Action, or a fallback, and notifies of it: rec.Action is then the action
// that was carried out. After an error the message is unsettled.
func (r *recovery) carryOut(ctx context.Context, rec *pipeline.Recover) (err error) {
	defer panics.Catch(&err)
	sent, _ := r.session.unit.End()
	x := execution{recovery: r, rec: rec, sent: sent}
	place := r.live.notifier.Next(r.FailureKey()) // before the message is settled: then its next attempt may be faster than this report
	report := func() {}
	defer func() { r.Report(place, report) }()
	r.logAction(ctx, rec.Action, rec.Failure)
	switch a := rec.Action.(type) {
	case recoverability.Retry:
		retry := r.Received.Retry
		// An error may panic when it is asked for its text; the fault headers survive that.
		reason := rec.Fault.Get(header.ExceptionMessage)
		if d, ok := r.Received.(transport.RetryReasoner); ok && reason != "" {
			retry = func(ctx context.Context) error { return d.RetryBecause(ctx, reason) }
		}
		err = x.settle(ctx, retry)
	case recoverability.RetryInline:
		err = x.keepDelivery(ctx)
	case recoverability.Delay:
		err = x.delay(ctx, a)
	case recoverability.MoveToError:
		err = x.moveToError(ctx, a.Queue, true)
	case recoverability.DeadLetter:
		err = x.deadLetter(ctx, a)
	case recoverability.Discard:
		if err = x.commitApart(); err == nil {
			err = r.audit.Complete(ctx, r.session.unit.Begun(), x.sent, nil, "discarded")
		}
	}
	if err != nil {
		return err
	}
	report = r.carriedOut(ctx, rec)
	return nil
}

// carriedOut forgets the failures of a message whose action ends the cycle. It returns a function
// that reports the action.
func (r *recovery) carriedOut(ctx context.Context, rec *pipeline.Recover) (report func()) {
	if again := sameCycle(rec.Action); r.exclusive != nil || !again && !r.LostLease() {
		r.ForgetFailures()
	}
	if r.LostLease() {
		return func() {}
	}
	done, failure := rec.Action, rec.Failure
	return func() { r.notifyAction(ctx, done, failure) }
}

// sameCycle reports whether the failures of the message count for its next attempt too.
func sameCycle(action recoverability.Action) bool {
	_, immediate := action.(recoverability.Retry)
	_, inline := action.(recoverability.RetryInline)
	return immediate || inline
}

// possible returns the action, or a move to the error queue where it cannot be carried out.
func (r *recovery) possible(ctx context.Context, action recoverability.Action) recoverability.Action {
	if action == (recoverability.MoveToError{}) {
		return r.toErrorQueue()
	}
	switch a := action.(type) {
	case recoverability.Delay:
		action = recoverability.Delay{For: max(0, a.For)}
	case recoverability.RetryInline:
		action = recoverability.RetryInline{For: max(0, a.For)}
	case recoverability.MoveToError:
		action = recoverability.MoveToError{Queue: r.live.names.Of(a.Queue)}
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

// toErrorQueue is the action where no other is possible.
func (r *recovery) toErrorQueue() recoverability.Action {
	return recoverability.MoveToError{Queue: r.live.recoverability.ErrorQueue}
}

// impossible returns why the transport, the transaction mode or the quarantine does not allow the
// action; "" if they do.
func (r *recovery) impossible(action recoverability.Action) string {
	noRetries := r.exclusive.Forbids(action)
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
		switch most := r.live.limits.MaxDelay; {
		case noRetries != "":
			return noRetries
		case most == 0:
			return "the transport offers no delays"
		case a.For > most:
			return fmt.Sprintf("the delay is over the transport's %v", most)
		}
	case recoverability.MoveToError:
		if a.Queue == r.Queue || a.Queue == r.live.names.Of(r.e.cfg.Name+quarantineSuffix) || r.live.receivesFrom(a.Queue) {
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

// tookFallback records a fallback, to be reported once the message is settled.
func (r *recovery) tookFallback(f recoverability.Fallback, instead recoverability.Action) {
	r.fallbacks = append(r.fallbacks, recoverability.Notification{Kind: recoverability.FallbackTaken, Fallback: f, Action: instead})
}

// notifyAction reports an action that was carried out, and the fallbacks that led to it.
func (r *recovery) notifyAction(ctx context.Context, action recoverability.Action, f recoverability.Failure) {
	for _, n := range r.fallbacks {
		n.Failure = &f
		r.live.notifier.Notify(ctx, n)
	}
	n := recoverability.Notification{Failure: &f, Action: action}
	switch a := action.(type) {
	case recoverability.Retry:
		n.Kind, n.Retry = recoverability.ImmediateRetry, f.Immediate
	case recoverability.RetryInline:
		n.Kind, n.Retry = recoverability.InlineRetry, f.Inline+1
	case recoverability.Delay:
		n.Kind, n.Retry, n.To = recoverability.DelayedRetry, f.Delayed+1, r.Queue
	case recoverability.MoveToError:
		n.Kind, n.To = recoverability.MovedToError, a.Queue
	case recoverability.DeadLetter:
		n.Kind = recoverability.DeadLettered
	case recoverability.Discard:
		n.Kind = recoverability.Discarded
	}
	r.live.notifier.Notify(ctx, n)
}
