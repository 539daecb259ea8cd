package endpoint

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// recovery decides what happens to a message that failed, and carries it out. There is at most one
// of an attempt.
type recovery struct {
	*incoming

	at        fault.Frame                   // where the attempt failed
	session   *Session                      // of the Recover stage
	result    result                        // nil until the stage has come to its end
	fallbacks []recoverability.Notification // that were taken, to be reported once the message is settled
	logged    recoverability.Action         // announced in the log last
	finalised bool                          // Config.OnFinalFailure has been called
	move      *execution                    // the last move to an error queue that was tried; nil before
	stage     overdue.Call                  // of the Recover stage
}

// result is how a recovery ended.
//
//sumtype:decl
type result interface{ isResult() }

type (
	// settled: an action was carried out.
	settled struct{}
	// retrying: another attempt follows within the delivery, after a pause.
	retrying struct{ after time.Duration }
	// waits: the error queue does not accept the message, which waits for it. It was reported.
	waits struct {
		move  *execution
		place *held.Place
	}
)

func (settled) isResult()  {}
func (retrying) isResult() {}
func (stuck) isResult()    {}
func (waits) isResult()    {}

// newRecovery returns the recovery from the failure of an attempt.
func newRecovery(in *incoming) *recovery {
	in.FailureCounted = true
	return &recovery{incoming: in}
}

// run decides, has the Recover stage see and change the decision, and carries it out. If the stage
// fails, the decision is carried out without the messages and writes of the stage.
func (r *recovery) run(ctx context.Context, a *attempt, err error) result {
	a.recoveredBy, r.at = r, a.origin()
	rec := r.begin(a, r.failure(err))
	rec.Action = r.decide(ctx, rec.Failure)
	rec.Fault = r.faultHeaders(ctx, rec.Failure)
	r.e.failures.Record(r.FailureKey(), fault.Past(rec.Failure, rec.Fault))
	err = r.asFunction(&r.stage, &nameRecover, func() error { return r.e.recover(ctx, rec) })
	if r.result != nil {
		if err != nil {
			r.LogError(ctx, slog.LevelError, errAfterSettled, err)
		}
		return r.result
	}
	if err != nil {
		r.startOver(ctx, a, err)
	}
	if err = r.conclude(ctx, rec); r.separable(ctx, err) { // perhaps because of Config.OnFinalFailure
		r.startOver(ctx, a, err)
		err = r.conclude(ctx, rec)
	}
	return r.end(ctx, rec, err)
}

// recoverEnd is the end of the Recover stage.
func recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	r := attemptOf(rec.Receive).recoveredBy
	if r.result != nil {
		return settle.ErrSettled
	}
	r.live.calls.Suspend(&r.stage)
	defer r.live.calls.Resume(&r.stage)
	err := r.conclude(ctx, rec)
	if r.separable(ctx, err) {
		return err // run concludes without the stage's messages
	}
	r.result = r.end(ctx, rec, err)
	return nil
}

// end returns the result of a recovery whose last conclusion returned err.
func (r *recovery) end(ctx context.Context, rec *pipeline.Recover, err error) result {
	if err == nil {
		if a, ok := rec.Action.(recoverability.RetryInline); ok {
			return retrying{a.For}
		}
		return settled{}
	}
	if w, ok := r.beginHold(ctx, err); ok {
		return w
	}
	r.session.unit.Rollback(ctx)
	return r.keep(ctx, err)
}

// begin returns the value of the Recover stage. It has a session and headers of its own: a
// goroutine that outlives a handler may still use the attempt's, and must not send as part of the
// recovery.
func (r *recovery) begin(a *attempt, f recoverability.Failure) *pipeline.Recover {
	r.session = newRecoverySession(a)
	receive := a.receive.Recovering(r.session)
	return &pipeline.Recover{Receive: &receive, Failure: f}
}

// newRecoverySession returns a session of the Recover stage of an attempt.
func newRecoverySession(a *attempt) *Session {
	s := &Session{in: a, recovers: true}
	s.unit.Store, s.unit.Delivery, s.unit.ID = &a.live.units, a.Received, a.ID
	return s
}

// separable reports whether to conclude again without the messages and writes of the recovery,
// which may have caused the error. If the broker did not answer, or the transaction lost a conflict
// or had a notice without a queue, the next attempt may succeed with them, so they are kept, unless
// there is no next attempt, or the next ones failed too.
func (r *recovery) separable(ctx context.Context, err error) bool {
	switch {
	case err == nil, r.canWait(err), r.session.unit.Empty():
		return false
	case r.CompletedFirst():
		return true
	case conflict(&r.session.unit, err), errtree.Find[*audit.IncompleteError](err) != nil:
		return false
	}
	return !copies.Unanswered(err) || r.strandsAlone(ctx)
}

// strandsAlone reports whether the transaction of the recovery could not be committed in ten
// deliveries, as in an outage, and the database stores other things nevertheless.
func (r *recovery) strandsAlone(ctx context.Context) bool {
	return r.session.unit.Begun() != nil && r.live.outage.StoresOthers(ctx) &&
		r.e.failures.Stranded(r.FailureKey()) >= maxConflicts
}

// startOver discards the messages and writes of the recovery.
func (r *recovery) startOver(ctx context.Context, a *attempt, err error) {
	r.LogError(ctx, slog.LevelError, "the Recover stage failed: its messages and writes are discarded", err)
	r.session.unit.Rollback(ctx)
	r.session = newRecoverySession(a)
}

// failure counts the failure, and returns the facts by which the policy decides.
func (r *recovery) failure(err error) recoverability.Failure {
	f := r.Facts(err)
	known, _ := r.e.failures.Known(r.FailureKey())
	if r.Inline == 0 { // a delivery counts once
		known = r.e.failures.Count(r.FailureKey(), f.Now, r.exclusive == nil && f.AttemptExact && f.Attempt == 1)
	}
	if known.Since.Before(f.FirstFailure) { // in the first cycle only this process knows
		f.FirstFailure = known.Since
	}
	f.Handled, f.Lost, f.History = known.Failed, known.Lost, append(f.History, known.Past...)
	switch {
	case r.exclusive != nil:
		f.Quarantined = r.exclusive.Before
		// The failures before quarantine count, so that the message is not retried at once there.
		f.Immediate = max(f.Quarantined-1+f.Attempt, f.Config.Immediate+1, f.Config.Quarantine.After)
	case !f.AttemptExact:
		f.Immediate = known.Failed + fault.UsedRetries(r.Original.Headers)
	}
	return f
}

// decide asks the policy. One that panics or decides nothing moves the message to the error queue.
func (r *recovery) decide(ctx context.Context, f recoverability.Failure) (action recoverability.Action) {
	r.findPolicy(ctx, f)
	policy := r.live.recoverability.Policy
	if policy == nil {
		policy = recoverability.Failure.Decide
	}
	err := r.asFunction(new(overdue.Call), &namePolicy, func() error {
		action = policy(f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError, "the recoverability policy failed: moving the message to the error queue", err)
		r.tookFallback(recoverability.FallbackError, nil)
	}
	if action == nil {
		return r.toErrorQueue()
	}
	return action
}

// faultHeaders returns the headers that a move to the error queue adds, changed by the user's
// function, which may panic.
func (r *recovery) faultHeaders(ctx context.Context, f recoverability.Failure) header.Map {
	h := fault.Headers(f, r.e.host, r.at)
	h.Set(header.FailedQ, r.live.names.Address(f.Queue)) // other programs return the message to that queue
	if errtree.Find[*transport.DeadLetteredError](f.Err) != nil {
		h = fault.DeadLetterHeaders(r.Original.Headers, h)
	}
	change := r.live.recoverability.FaultHeaders
	if change == nil {
		return h
	}
	changed := h.Clone()
	err := r.asFunction(new(overdue.Call), &nameFaultHeaders, func() error {
		change(&changed, f)
		return nil
	})
	if err != nil {
		r.LogError(ctx, slog.LevelError, "Recoverability.FaultHeaders failed: the headers are not changed", err)
		return h
	}
	return changed
}

// findPolicy logs that the endpoint does not have the policy that the message names. Then the
// message is retried as any other of its type.
func (r *recovery) findPolicy(ctx context.Context, f recoverability.Failure) {
	name := cmp.Or(f.Headers.Get(header.HoldfastPolicy), f.Headers.Get(header.HoldfastRetryPolicy))
	if name == "" {
		return
	}
	if _, ok := f.Config.NamedPolicy(name); ok {
		return
	}
	r.Log.WarnContext(ctx, "a message names a retry policy that the endpoint does not have: its type's retries count; "+
		"add the policy to Recoverability.Policies", slog.String("message", r.LogID()),
		slog.String("policy", errtree.Cut(name, settle.MaxLogged)))
}

// moveRefused moves a message to the error queue, because a copy of it was refused for its content.
// If the error queue refuses the message too, the message waits for the queue, or is requeued.
func (in *incoming) moveRefused(ctx context.Context, failure *copies.CopyError) outcome {
	in.LogError(ctx, slog.LevelError, "a copy of a message was refused: moving the message to the error queue", failure)
	in.Slot.Free()
	r, rec := in.newAttempt().burial(ctx, in.Queue, failure)
	return in.recovered(ctx, r.end(ctx, rec, r.conclude(ctx, rec)))
}
