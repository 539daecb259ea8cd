package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// attemptGuard is asked at the beginning of each attempt. If the guard returns neither an outcome
// nor an error, the attempt goes on. An error is the failure of the attempt.
type attemptGuard func(ctx context.Context, a *Attempt) (outcome, error)

// handle runs the message through the handlers, sends the operations and completes the message,
// unless a guard has an outcome. After an error the message is unsettled, unless a behavior failed
// last.
func (a *Attempt) handle(ctx context.Context, guards []attemptGuard) (out outcome, err error) {
	defer panics.Catch(&err)
	for _, g := range guards {
		if out, err := g(ctx, a); out != nil || err != nil {
			return out, err
		}
	}
	if err := a.receive(ctx); err != nil {
		return nil, err
	}
	if a.keysEnded != nil { // a behavior has dropped the error
		return nil, pump.ErrStopping
	}
	a.Unit.UndoFailed(ctx)
	ops, tx := a.Unit.End()
	if tx == nil { // an open transaction is part of the work, and keeps the slot
		a.leaveLimit()
		a.Slot.Free()
	}
	if err := a.dispatch(ctx, ops); err != nil {
		return nil, err
	}
	return done{}, nil
}

// receive runs the message through the behaviors and handlers.
func (a *Attempt) receive(ctx context.Context) error {
	a.Calls.Begin(a.Running, a.Queue, a.ID, a.Slot.Goroutine())
	defer a.Calls.End(a.Running)
	return a.ReceiveStage(ctx, &a.Receive)
}

// dispatch sends ops and completes the message, through stage Dispatch.
func (a *Attempt) dispatch(ctx context.Context, ops []transport.Operation) error {
	a.Dispatch = pipeline.Dispatch{Operations: ops, Incoming: &a.Receive}
	if err := a.DispatchStage(ctx, &a.Dispatch); err != nil {
		return err
	}
	if a.Over() {
		return nil
	}
	return a.Finish(ctx, nil) // a behavior did not send the operations
}

// Finish sends ops, and what the endpoint itself sends, and completes the message. Finish is the
// end of stage Dispatch.
func (a *Attempt) Finish(ctx context.Context, ops []transport.Operation) error {
	tx := a.Unit.Begun()
	if a.Outbox != nil {
		return a.store(ctx, tx, ops)
	}
	if a.Timers != nil {
		var err error
		if ops, err = a.Timers.Apart(ctx, ops, a.Unit.Cancelled()); err != nil {
			return err //nolint:wrapcheck // the outbox names itself
		}
	}
	recorder, ok := a.Received.(transport.HandledRecorder)
	if !ok || a.Unit.Key == nil {
		return a.audit.Complete(ctx, tx, ops, &a.audited, "")
	}
	recorder.RecordHandled(a.Inbox.Name, a.Unit.Key)
	err := a.audit.Complete(ctx, tx, ops, &a.audited, "")
	if err != nil {
		recorder.RecordHandled("", nil) // the message may be completed with a copy for later
		return a.Unit.Fail(&work.CommitError{Err: err})
	}
	a.Outage.Committed.Store(true)
	return nil
}

// store commits ops and the key of the message in the outbox's database, with the writes in tx if
// there is a transaction. Then store completes the message. The notice to ServiceControl and the
// audit copy are stored too: the broker may refuse both without harm to the message and to ops.
func (a *Attempt) store(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if a.Over() {
		return settle.ErrSettled
	}
	own := a.audit.With(ctx, a.Outbox.Cancels(a.Unit.Cancelled()), &a.audited)
	if err := a.Outbox.Commit(a.Context(), a.Unit, tx, ops, own); err != nil {
		return err //nolint:wrapcheck // the outbox names itself
	}
	// The message is handled: a failed completion is no failure of the message.
	a.Try(ctx, a.Received.Complete, "a message was handled but could not be completed: "+
		"the broker delivers it again, and it is recognized")
	return nil
}

// completeAgain completes a message that was handled before. If ServiceControl has returned the
// message, ServiceControl waits for a notice.
func (a *Attempt) completeAgain(ctx context.Context) {
	a.Slot.Free()
	a.Log.InfoContext(ctx, "a message was handled before: it is completed, and not handled again",
		slog.String("message", a.LogID()), slog.Int("attempt", a.Receive.Attempt.N))
	if err := a.audit.Complete(ctx, nil, nil, nil, ""); err != nil {
		a.Abandon(ctx, "a message that was handled before could not be completed: the broker delivers it again", err)
	}
}

// EnterLimit waits, without a slot, until the message is within the limit of its type; nil is no
// limit. A behavior may have the message decoded again, perhaps as another type.
func (a *Attempt) EnterLimit(ctx context.Context, l *typelimit.Limiter) error {
	if l == nil || a.limit == l {
		return nil
	}
	a.leaveLimit()
	if err := l.Enter(ctx, a.Slot); err != nil {
		return err //nolint:wrapcheck // the cause of ctx
	}
	a.limit = l
	return nil
}

// leaveLimit admits the next message of the type. leaveLimit is called before the slot is freed for
// that message.
func (a *Attempt) leaveLimit() {
	if a.limit != nil {
		a.limit.Leave()
		a.limit = nil
	}
}

// outstayedPause is the time after which a message is due again, if the message waited for too long
// and returns as a copy.
const outstayedPause = time.Second

var errOutstayed = errors.New("the message has waited for its key for as long as the broker allows")

// TakeKeys waits, without a slot, until the message has the keys. A behavior may have the message
// decoded again, perhaps with different keys.
func (a *Attempt) TakeKeys(ctx context.Context, keys []keylock.Key) error {
	if a.Keys.Has(keys) {
		return nil
	}
	a.leaveLimit() // a message with these keys may wait for the place
	return a.Keys.Take(a.Slot, keys, func(granted <-chan struct{}) error { return a.awaitKeys(ctx, granted) })
}

// awaitKeys waits until the keys are granted, together with a slot. It returns an error if the
// message has no more time: the endpoint stops, the lease is lost, or the broker is about to
// redeliver the message.
func (a *Attempt) awaitKeys(ctx context.Context, granted <-chan struct{}) error {
	switch a.await(ctx, forever, granted) {
	case happened:
		return nil
	case late:
		a.keysEnded = untouched{outstayedPause}
		return errOutstayed
	case stopping:
		a.keysEnded = released{}
		return pump.ErrStopping
	case canceled:
		if !a.CompletedFirst() {
			a.keysEnded = released{}
		}
	}
	return context.Cause(ctx)
}

// nameMatchers is the name of a function of the program: see [overdue.Call.EnterFunction].
var nameMatchers = "a matcher of Recoverability"

// fail returns the outcome of an attempt that ended with err. The transaction is rolled back. The
// slot is freed, unless the next attempt is made at once.
func (a *Attempt) fail(ctx context.Context, err error) outcome {
	a.leaveLimit()
	repeatable := a.isRepeatable(err)
	alone := a.Outage.FailsAlone(ctx, &a.Delivery, a.Unit, err, repeatable)
	if !a.Over() && (alone || repeatable) {
		switch {
		case a.conflicts.n < maxConflicts && (!alone || !a.Errors.TimedOut(err)):
			a.Unit.Rollback(ctx)
			return a.repeat(ctx, err)
		case work.IsConflict(err) && !a.CompletedFirst():
			a.Unit.Rollback(ctx)
			return a.contended(ctx, err)
		case !alone && a.Outage.BreaksAlone(ctx, &a.Delivery, a.Unit, err):
			err, alone = outage.BlameConnection(err), true
		}
	}
	a.Slot.Free()
	if a.Over() {
		return failed{err}
	}
	_, tx := a.Unit.End()
	a.Unit.Rollback(ctx)
	if by := a.keysEnded; by != nil {
		return cmp.Or(a.interrupted(ctx, pump.ErrStopping), outcome(back{by}))
	}
	if queue := a.BusyQueue(); queue != "" && ctx.Err() == nil {
		return back{behind{queue}}
	}
	if alone {
		err = outage.BlameMessage(err)
	} else if out := a.awaitDatabase(ctx, tx, err); out != nil {
		return out
	}
	if out := a.interrupted(ctx, err); out != nil {
		return out
	}
	if a.turn.Limit != nil {
		return a.throttle(ctx, err)
	}
	return failed{err}
}

// isRepeatable reports whether the transaction of an attempt that failed with err may succeed when
// the attempt is repeated. After a commit with an unknown outcome, and after the commit of another
// delivery of the message, the next attempt finds that the message was handled.
func (a *Attempt) isRepeatable(err error) bool {
	if stored := a.Unit.Failure(); a.Unit.Key != nil &&
		(errors.Is(stored, transport.ErrAlreadyHandled) || errors.Is(stored, transport.ErrOutcomeUnknown)) {
		return true
	}
	// err may wrap itself. A time limit that ends a statement may break the connection: the error
	// looks like a conflict.
	return errtree.Find[*audit.IncompleteError](err) != nil ||
		a.Unit.Conflict(err) && !a.Errors.TimedOut(err)
}

// repeat returns the outcome of an attempt whose transaction was rolled back because of err.
func (a *Attempt) repeat(ctx context.Context, err error) outcome {
	pause := a.conflicts.next()
	a.Log.InfoContext(ctx, "a transaction could not be completed: the attempt is repeated",
		slog.String("message", a.LogID()), slog.Int("repeats", a.conflicts.n), slog.Any("error", err))
	return again{&wait{after: pause, keeps: keepsSlot}}
}

// contended returns the outcome of a message whose transaction lost conflicts at each attempt.
func (a *Attempt) contended(ctx context.Context, err error) outcome {
	a.Slot.Free()
	a.Log.WarnContext(ctx, "a transaction lost conflicts at each attempt: the message returns to its queue, without a retry used up",
		slog.String("message", a.LogID()), slog.Int("attempts", a.conflicts.n+1), slog.Any("error", err))
	return back{untouched{a.conflicts.pause.Next()}}
}

// interrupted returns the outcome of an attempt that was cut short; nil if the attempt was not cut
// short. An interruption is no failure of the message. A message that was completed first cannot
// return to the queue.
func (a *Attempt) interrupted(ctx context.Context, err error) outcome {
	switch cause := context.Cause(ctx); {
	case cause == nil || a.CompletedFirst():
		return nil
	case errors.Is(cause, transport.ErrLeaseLost),
		errors.Is(cause, pump.ErrStopping) && (isCanceled(err) || isStopping(err)):
		return a.cutShort(ctx)
	}
	return nil
}

// isCanceled and isStopping match the errors of a handler that ended because the context ended. The
// error is the user's, and may wrap itself.
var isCanceled, isStopping = recoverability.Is(context.Canceled), recoverability.Is(pump.ErrStopping)

// throttle returns the outcome of an attempt that failed with err, at a message with a rate limit.
// While attempts are limited, the failure uses up no retry, unless another attempt cannot succeed.
func (a *Attempt) throttle(ctx context.Context, err error) outcome {
	f, mendable, call := a.Facts(err), false, &overdue.Call{Slot: a.Slot}
	if a.Calls.Apart(call, &nameMatchers, a.Queue, a.ID, func() error {
		mendable = f.Mendable()
		return nil
	}) != nil || !mendable {
		return failed{err}
	}
	switch a.turn.Failed(ctx, &a.Delivery, err, f.Now) {
	case throttle.Again:
		return again{}
	case throttle.Later:
		return back{throttled{}}
	case throttle.Counted:
	}
	return failed{err}
}
