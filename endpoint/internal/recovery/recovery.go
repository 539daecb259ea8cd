package recovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Recovery is the recovery from the failure of an attempt. An attempt has at most one Recovery.
type Recovery struct {
	Failed

	result Result       // nil until the stage has come to its end
	move   *execution   // the last move to an error queue that was tried; nil before
	stage  overdue.Call // of stage Recover
}

// Result is how a recovery ended.
//
//sumtype:decl
type Result interface{ isResult() }

// Settled is the result of a recovery that carried out an action, or whose message was settled
// before.
type Settled struct{}

// Retrying is the result of a recovery after which another attempt follows within the delivery,
// after a pause.
type Retrying struct{ After time.Duration }

// Waits is the result of a recovery whose message waits because the error queue does not accept
// messages. The message was reported.
type Waits struct {
	move  *execution
	place *held.Place
}

func (Settled) isResult()  {}
func (Retrying) isResult() {}
func (Waits) isResult()    {}

const errAfterSettled = "a behavior failed after its message was settled"

// Run decides, has the Recover stage see and change the decision, and carries it out. If the stage
// fails, the decision is carried out without the messages and writes of the stage.
func (r *Recovery) Run(ctx context.Context, a Attempt, err error) Result {
	if r.Over() {
		r.LogError(ctx, slog.LevelError, errAfterSettled, err)
		return Settled{}
	}
	rec := r.begin(a, r.failure(err))
	rec.Action = r.decide(ctx, rec.Failure)
	rec.Fault = r.faultHeaders(ctx, rec.Failure)
	r.Failures.Record(r.FailureKey(), fault.Past(rec.Failure, rec.Fault))
	err = r.call(&r.stage, &nameRecover, func() error { return r.Stage(ctx, rec) })
	if r.result != nil {
		if err != nil {
			r.LogError(ctx, slog.LevelError, errAfterSettled, err)
		}
		return r.result
	}
	if err != nil {
		r.startOver(ctx, err)
	}
	if err = r.conclude(ctx, rec); r.separable(ctx, err) { // perhaps because of Config.OnFinalFailure
		r.startOver(ctx, err)
		err = r.conclude(ctx, rec)
	}
	return r.end(ctx, rec, err)
}

// AtEndOfStage is called at the end of stage Recover.
func (r *Recovery) AtEndOfStage(ctx context.Context, rec *pipeline.Recover) error {
	if r.result != nil {
		return settle.ErrSettled
	}
	r.Calls.Suspend(&r.stage)
	defer r.Calls.Resume(&r.stage)
	err := r.conclude(ctx, rec)
	if r.separable(ctx, err) {
		return err // Run concludes without the stage's messages
	}
	r.result = r.end(ctx, rec, err)
	return nil
}

// end returns the result of a recovery whose last conclusion returned err.
func (r *Recovery) end(ctx context.Context, rec *pipeline.Recover, err error) Result {
	if err == nil {
		if a, ok := rec.Action.(recoverability.RetryInline); ok {
			return Retrying{a.For}
		}
		return Settled{}
	}
	if w, ok := r.beginHold(ctx, err); ok {
		return w
	}
	r.unit.Rollback(ctx)
	return r.Keep(ctx, err)
}

// separable reports whether to conclude again without the messages and writes of the recovery,
// which may have caused the error. If the broker did not answer, or the transaction lost a conflict
// or had a notice without a queue, the next attempt may succeed with the messages and writes. They
// are kept, unless there is no next attempt, or the next attempts failed too.
func (r *Recovery) separable(ctx context.Context, err error) bool {
	switch {
	case err == nil, r.canWait(err), r.unit.Empty():
		return false
	case r.CompletedFirst():
		return true
	case r.unit.Conflict(err), errtree.Find[*audit.IncompleteError](err) != nil:
		return false
	}
	return !copies.Unanswered(err) || r.strandsAlone(ctx)
}

// maxStranded is the number of deliveries in which the transaction of the recovery is tried.
const maxStranded = 10

// strandsAlone reports whether the transaction of the recovery could not be committed in
// [maxStranded] deliveries, as in an outage, and the database stores other things nevertheless.
func (r *Recovery) strandsAlone(ctx context.Context) bool {
	return r.unit.Begun() != nil && r.StoresOthers(ctx) &&
		r.Failures.Stranded(r.FailureKey()) >= maxStranded
}

// startOver discards the messages and writes of the recovery.
func (r *Recovery) startOver(ctx context.Context, err error) {
	r.LogError(ctx, slog.LevelError,
		"the Recover stage failed: its messages and writes are discarded", err)
	r.unit.Rollback(ctx)
	r.newSession()
}

// conclude carries out the action. If the action gives the message up, conclude calls
// Config.OnFinalFailure before.
func (r *Recovery) conclude(ctx context.Context, rec *pipeline.Recover) error {
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

// carryOut carries out rec.Action, or a fallback, and notifies of the action: rec.Action is then
// the action that was carried out. After an error the message is unsettled.
func (r *Recovery) carryOut(ctx context.Context, rec *pipeline.Recover) (err error) {
	defer panics.Catch(&err)
	sent, _ := r.unit.End()
	x := execution{Failed: &r.Failed, rec: rec, sent: sent}
	defer func() {
		if x.tried {
			r.move = &x
		}
	}()
	// Before the message is settled: then the next attempt may be faster than this report.
	place := r.Notifier.Next(r.FailureKey())
	report := func() {}
	defer func() { r.Report(place, report) }()
	r.logAction(ctx, rec.Action, rec.Failure)
	switch a := rec.Action.(type) {
	case recoverability.Retry:
		retry := r.Received.Retry
		// The text of an error may panic: the fault headers have the text already.
		reason := rec.Fault.Get(header.ExceptionMessage)
		if d, ok := r.Received.(transport.RetryReasoner); ok && reason != "" {
			retry = func(ctx context.Context) error { return d.RetryBecause(ctx, reason) }
		}
		if err = x.keepDelivery(ctx); err == nil {
			err = r.Settle(ctx, retry)
		}
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
			err = r.Audit.Complete(ctx, r.unit.Begun(), x.sent, nil, "discarded")
		}
	}
	if err != nil {
		return err
	}
	report = r.carriedOut(ctx, rec)
	return nil
}

// canWait reports whether the message may wait for its error queue, without a slot, after its move
// has failed with err. After another error of the move, and after a refusal of the copy for its
// content, the message does not wait.
func (r *Recovery) canWait(err error) bool {
	if r.move == nil || !r.move.isHeldable() {
		return false
	}
	if _, line := errors.AsType[*lineError](err); line {
		return true
	}
	_, stranded := errors.AsType[*copies.StrandedError](err)
	return (copies.Refused(err) || copies.Unanswered(err)) && !stranded &&
		!copies.OfMessage(copies.ErrorOf(err, len(r.move.sent)))
}

// beginHold holds the message whose move has failed with err, and reports it. It returns false if
// the message cannot wait, or if too many are held already.
func (r *Recovery) beginHold(ctx context.Context, err error) (w Waits, ok bool) {
	if !r.canWait(err) {
		return w, false
	}
	queue, size := r.move.wanted.Queue, int64(len(r.Original.Body)+r.Original.Headers.Size())
	enter := r.Room.Enter
	if _, line := errors.AsType[*lineError](err); line {
		enter = r.Room.Follow
	}
	place, begins := enter(queue, size, err)
	if place == nil {
		return w, false
	}
	r.move.until = r.Slot.Hold()
	if most := r.Limits.MaxHold; r.move.until.IsZero() && most > 0 {
		r.move.until = time.Now().Add(most - r.Slot.Age())
	}
	r.move.again = true
	if begins {
		r.Log.ErrorContext(ctx,
			"an error queue accepts no messages: failed messages are held until it does",
			slog.String("queue", queue), slog.Any("error", err))
	}
	r.reportKept(ctx, err)
	return Waits{r.move, place}, true
}

// Hold waits until the error queue accepts the message, or the message must leave.
func (w Waits) Hold(ctx context.Context) {
	x := w.move
	// s is nil while other messages wait.
	if s := w.place.Hold(ctx, x, x.Slot.Stopping()); s != nil {
		x.Log.InfoContext(ctx,
			"no failed message waits for an error queue any more", slog.String("queue", s.Queue),
			slog.Duration("after", time.Since(s.Since)), slog.Int("moved", s.Accepted))
	}
}

// MoveDecided moves the message with the fault headers that it has. The policy and
// Config.OnFinalFailure were called before. failure is the failure in the earlier delivery, and
// queue is the error queue that the copy names.
func (r *Recovery) MoveDecided(
	ctx context.Context, a Attempt, queue string, failed header.Map, failure error,
) Result {
	rec := r.begin(a, r.Facts(failure))
	r.finalised = true
	rec.Failure.Queue = cmp.Or(r.Names.Of(failed.Get(header.FailedQ)), r.Queue)
	rec.Action = recoverability.MoveToError{Queue: r.errorQueueOf(queue)}
	// Without a queue the copy had no room for the headers, or no endpoint has made the copy.
	if rec.Fault = failed; failed.Get(header.FailedQ) == "" {
		rec.Fault = r.faultHeaders(ctx, rec.Failure)
	}
	return r.end(ctx, rec, r.conclude(ctx, rec))
}

// errorQueueOf returns the error queue that a copy names. The sender of a message does not
// decide where the endpoint moves the message: a queue that is not configured counts only if a
// policy of the program chooses queues.
func (r *Recovery) errorQueueOf(named string) string {
	queue := r.Names.Of(named)
	if r.Config.Policy == nil && !slices.Contains(r.Config.ErrorQueues(), queue) {
		return r.Config.ErrorQueue
	}
	return queue
}

// MoveRefused moves a message to the error queue, because a copy of it was refused for its content.
// If the error queue refuses the message too, the message waits for the queue, or is requeued.
func (r *Recovery) MoveRefused(ctx context.Context, a Attempt, failure *copies.CopyError) Result {
	r.LogError(ctx, slog.LevelError,
		"a copy of a message was refused: moving the message to the error queue", failure)
	r.Slot.Free()
	rec := r.beginBurial(ctx, a, r.Queue, failure)
	return r.end(ctx, rec, r.conclude(ctx, rec))
}

// Bury moves a message that the broker dead-lettered, or that cannot be sent on, from queue to the
// error queue. There is nothing to decide, so the policy is not asked. Its number of
// deliveries is unknown.
func (r *Recovery) Bury(ctx context.Context, a Attempt, queue string, failure error) error {
	return r.conclude(ctx, r.beginBurial(ctx, a, queue, failure))
}

// beginBurial returns the value of stage Recover with the move of [Recovery.Bury].
func (r *Recovery) beginBurial(
	ctx context.Context, a Attempt, queue string, failure error,
) *pipeline.Recover {
	r.Queue = r.Names.Of(queue)
	rec := r.begin(a, r.Facts(failure))
	rec.Failure.AttemptExact = false
	rec.Action = r.toErrorQueue()
	rec.Fault = r.faultHeaders(ctx, rec.Failure)
	return rec
}
