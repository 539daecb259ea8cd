package process

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// nameMatchers is the name of a function of the program: see [overdue.Call.EnterFunction].
var nameMatchers = "a matcher of Recoverability"

// fail returns the outcome of an attempt that ended with err. The transaction is rolled back. The
// slot is freed, unless the next attempt is made at once.
func (a *Attempt) fail(ctx context.Context, err error) outcome {
	a.Limit.Leave()
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
	return a.throttle(ctx, err)
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

// throttle returns the outcome of an attempt that failed with err. While attempts are limited, the
// failure uses up no retry, unless another attempt cannot succeed.
func (a *Attempt) throttle(ctx context.Context, err error) outcome {
	if a.turn.Limit == nil {
		return failed{err}
	}
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
