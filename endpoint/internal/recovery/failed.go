package recovery

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/quarantine"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
)

// The names of the functions of the program that a recovery calls: see
// [overdue.Call.EnterFunction].
var (
	nameRecover      = "a behavior of stage Recover"
	namePolicy       = "Recoverability.Policy, or a matcher"
	nameFaultHeaders = "Recoverability.FaultHeaders"
	nameFinalFailure = "Config.OnFinalFailure"
)

// Failed is a message that failed. Its exported fields are set before the first call. A Failed is
// not safe for concurrent use.
type Failed struct {
	*Shared
	*settle.Delivery
	notify.Reporter

	Audit     *audit.Message
	Exclusive *quarantine.Message // nil outside quarantine
	MayWait   bool                // for the error queue, without a slot

	attempt   Attempt
	at        fault.Frame                   // where the attempt failed
	session   pipeline.Sender               // of stage Recover
	unit      *work.Unit                    // of the session
	fallbacks []recoverability.Notification // to be reported when the message is settled
	logged    recoverability.Action         // announced in the log last
	finalised bool                          // Config.OnFinalFailure has been called
}

// Stuck is the result of a recovery whose message could be neither settled nor moved. The message
// was reported, and is requeued after a pause.
type Stuck struct{ pause time.Duration }

func (Stuck) isResult() {}

// begin returns the value of stage Recover after an attempt. The value has a session and headers of
// its own: a goroutine that outlives a handler may still use the attempt's, and must not send as
// part of the recovery.
func (r *Failed) begin(a Attempt, f recoverability.Failure) *pipeline.Recover {
	r.FailureCounted = true
	r.attempt, r.at = a, a.Origin()
	r.newSession()
	receive := a.Recovering(r.session)
	return &pipeline.Recover{Receive: &receive, Failure: f}
}

// newSession sets a new session of stage Recover.
func (r *Failed) newSession() { r.session, r.unit = r.attempt.NewSession() }

// call calls f, a function of the program: see [overdue.Watch.Apart].
func (r *Failed) call(call *overdue.Call, name *string, f func() error) error {
	call.Slot = r.Slot
	return r.Calls.Apart(call, name, r.Queue, r.ID, f)
}

// onFinalFailure calls the user's function, once. If the function fails, its operations are
// left out. An error is returned if the function may have written in the transaction, because
// writes cannot be undone in part.
func (r *Failed) onFinalFailure(ctx context.Context, failure recoverability.Failure) error {
	if r.OnFinalFailure == nil || r.finalised {
		return nil
	}
	r.finalised = true
	before, err := r.unit.Begin(ctx, work.AllHandlers)
	if err != nil {
		return err
	}
	err = r.call(new(overdue.Call), &nameFinalFailure, func() error {
		return r.OnFinalFailure(ctx, r.session, failure)
	})
	if err == nil {
		return nil
	}
	r.LogError(ctx, slog.LevelError,
		"Config.OnFinalFailure failed: its messages and writes are discarded", err)
	if _, tx := r.unit.End(); tx != nil { // no goroutine of the function sends any more
		return &copies.ProgramError{Mark: errtree.Mark{Err: err}}
	}
	r.unit.Drop(before)
	return nil
}

// Keep reports a message that can be neither settled nor moved, for instance because the error
// queue is missing. The caller requeues the message.
func (r *Failed) Keep(ctx context.Context, err error) Stuck {
	r.reportKept(ctx, err)
	switch {
	case r.CompletedFirst():
		r.LogError(ctx, slog.LevelError,
			"a failed message is lost: it was completed first, and the error queue refused it",
			err)
		return Stuck{}
	case r.Exclusive != nil:
		r.LogError(ctx, slog.LevelError,
			"a failed message could not be settled: it leaves quarantine unless it is parked",
			err, slog.Bool("parked", r.Exclusive.Parked))
		return Stuck{}
	}
	pause := r.StuckPause()
	r.LogError(ctx, slog.LevelError, "a failed message could not be settled: it is requeued",
		err, slog.Duration("after", pause))
	return Stuck{pause}
}

// reportKept notifies of a message that can be neither settled nor moved.
func (r *Failed) reportKept(ctx context.Context, err error) {
	attempt := r.Received.Attempt()
	f := recoverability.Failure{
		Err:       fmt.Errorf("message %q from %q could not be settled: %w", r.LogID(), r.Queue, err),
		MessageID: r.ID, Type: settle.FirstType(r.Original.Headers), Queue: r.Queue,
		Attempt: attempt.N, AttemptExact: attempt.Exact, Now: time.Now(),
	}
	r.Report(r.Notifier.Next(r.FailureKey()), func() {
		r.Notifier.Critical(ctx, f)
		if !r.CompletedFirst() {
			r.Notifier.Notify(ctx, recoverability.Notification{
				Kind: recoverability.FallbackTaken, Failure: &f, Fallback: recoverability.FallbackHeld,
			})
		}
	})
}

// Requeue returns a stuck message to the queue of the message, after the pause: so no loop spins.
func (r *Failed) Requeue(ctx context.Context, s Stuck) {
	switch {
	case r.CompletedFirst():
		r.Lost()
	case r.Exclusive != nil:
		r.Exclusive.ReturnToOrigin(ctx)
	default:
		r.stuck.Add(1)
		r.sleep(ctx, s.pause)
		r.stuck.Add(-1)
		r.Retry(ctx)
	}
}
