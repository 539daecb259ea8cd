package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// fail deals with a message that was not processed: it is settled in the end,
// or left to the broker to hand out again.
func (in *incoming) fail(ctx context.Context, err error) {
	if in.settled {
		in.tooLate(ctx, err)
		return
	}
	in.rollback(ctx)
	if in.interrupted(ctx, err) {
		return
	}
	if in.heldBack(ctx, err) {
		return
	}
	rec := &pipeline.Recover{Receive: in.renewSession(), Failure: in.failure(err)}
	rec.Action = in.decide(ctx, rec.Failure)
	rec.Fault = in.faultHeaders(ctx, rec.Failure)
	in.e.failures.Record(in.failureKey(), fault.Past(rec.Failure, rec.Fault))
	err = apart(func() error { return in.e.recover(ctx, rec) })
	if in.settled {
		in.tooLate(ctx, err)
		return
	}
	if err != nil {
		in.startOver(ctx, err)
	}
	if err = in.conclude(ctx, rec); in.triedWithout(err) { // what Config.OnFinalFailure sent and wrote
		in.startOver(ctx, err)
		err = in.conclude(ctx, rec)
	}
	if err != nil {
		in.hold(ctx, err)
	}
}

// tooLate tells of a behavior that failed when nothing could be done about its message any more.
func (in *incoming) tooLate(ctx context.Context, err error) {
	if err != nil {
		in.log().ErrorContext(ctx, "a behavior failed after its message had been dealt with", slog.String("message", in.id), slog.Any("error", err))
	}
}

// triedWithout tells whether to conclude again without what was sent and written, which may be why it failed. It is not
// where there is a next attempt that may get through with all of it.
func (in *incoming) triedWithout(err error) bool {
	return err != nil && in.session.used() && (in.taken || !unanswered(err) && !in.conflict(err))
}

// startOver leaves out what was sent and written as part of the recovery.
func (in *incoming) startOver(ctx context.Context, err error) {
	in.log().ErrorContext(ctx, "the Recover stage failed: what it sent and wrote is left out", slog.String("message", in.id), slog.Any("error", err))
	in.rollback(ctx)
	in.session = &Session{in: in}
}

// renewSession gives the Recover stage a session and headers of its own. A goroutine that a
// handler left behind may still use the old ones, and must not send as part of the recovery.
func (in *incoming) renewSession() *pipeline.Receive {
	in.session = &Session{in: in}
	r := pipeline.NewReceive(in.receive.Message, in.session)
	r.Headers, r.Body = in.receive.Headers.Clone(), in.receive.Body
	r.Queue, r.Attempt = in.receive.Queue, in.receive.Attempt
	return &r
}

// rollback ends the session and undoes its transaction, if it has one that is not over.
func (in *incoming) rollback(ctx context.Context) {
	_, tx := in.session.end()
	if tx == nil {
		return
	}
	in.session.tx = nil
	if err := tx.Rollback(in.live.settling.context()); err != nil {
		in.log().WarnContext(ctx, "a transaction could not be rolled back", slog.String("message", in.id), slog.Any("error", err))
	}
}

// interrupted deals with a handler that was cut short, which is no failure of the
// message: at a stop it is released, and after a lost lease it is not ours.
func (in *incoming) interrupted(ctx context.Context, err error) bool {
	switch cause := context.Cause(ctx); {
	case cause == nil || in.taken:
		return false
	case errors.Is(cause, transport.ErrLeaseLost):
		_ = in.lost(ctx, cause) // nil: that is what it is
		// Who keeps books of what is out hears of it. Not by Release: what has been in hand for longer than its lease counts.
		_ = in.delivery.Retry(in.live.settling.context())
		return true
	case errors.Is(cause, pump.ErrStopping) && cancelled(err):
		in.release(ctx)
		return true
	}
	return false
}

// cancelled tells whether a handler ended because its context did. The error is the
// user's, and may be any: it may wrap itself.
func cancelled(err error) bool { return isCanceled(err) || isStopping(err) }

var isCanceled, isStopping = recoverability.Is(context.Canceled), recoverability.Is(pump.ErrStopping)

// failure is what the policy decides by. It counts.
func (in *incoming) failure(err error) recoverability.Failure {
	f := in.facts(err)
	in.failed = true
	known := in.e.failures.Count(in.failureKey(), f.Now, in.alone == nil && f.AttemptExact && f.Attempt == 1)
	if known.Since.Before(f.FirstFailure) { // in the first cycle only this process knows
		f.FirstFailure = known.Since
	}
	f.Handled, f.Lost, f.History = known.Failed, known.Lost, append(f.History, known.Past...)
	switch {
	case in.alone != nil:
		f.Quarantined, f.Immediate = in.alone.before, in.immediate()
	case !f.AttemptExact:
		f.Immediate = known.Failed + fault.UsedRetries(in.original.Headers)
	}
	return f
}

// facts are the message, and what is known without counting.
func (in *incoming) facts(err error) recoverability.Failure {
	now := time.Now()
	m, attempt := lent(in.original), in.delivery.Attempt()
	return recoverability.Failure{
		Err: err, MessageID: in.id, Type: firstType(m.Headers), Headers: m.Headers, Body: m.Body, Native: m.Native, Queue: in.queue,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Immediate: attempt.N + fault.UsedRetries(m.Headers),
		Delayed:      fault.DelayedRetries(m.Headers),
		FirstFailure: fault.FirstFailure(m.Headers, now), Now: now,
		Instance: in.e.cfg.Instance, History: fault.ParseHistory(m.Headers.Get(header.HoldfastHistory)),
		Config: in.live.recoverability,
	}
}

func firstType(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}

// decide asks the policy. One that panics or decides nothing gives the message up.
func (in *incoming) decide(ctx context.Context, f recoverability.Failure) (action recoverability.Action) {
	policy := in.live.recoverability.Policy
	if policy == nil {
		policy = recoverability.Failure.Decide
	}
	err := apart(func() error {
		action = policy(f)
		return nil
	})
	if err != nil {
		in.log().ErrorContext(ctx, "the recoverability policy failed: moving the message to the error queue",
			slog.String("message", in.id), slog.Any("error", err))
		in.fallBack(FallbackError, nil)
	}
	if action == nil {
		return in.toErrorQueue()
	}
	return action
}

// recoverEnd is the end of the Recover stage.
func (e *Endpoint) recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	in := attempt(rec.Receive)
	if in.settled {
		return errSettled
	}
	err := in.conclude(ctx, rec)
	if err != nil && !in.triedWithout(err) { // else by fail
		in.settled = true
		in.hold(ctx, err)
		return nil
	}
	return err
}
