package endpoint

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/audit"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/recovery"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/throttle"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// attempt is one attempt at a message: received, decoded, handled and settled.
type attempt struct {
	*incoming

	audited     audit.Copied       // set if there are audit copies
	limiter     *typelimit.Limiter // of the message's type, if the attempt has entered it
	calls       []call             // of the handlers
	bases       []baseValue
	callKeys    []string           // of the calls; nil where no handler has a key
	at          int                // the call being invoked
	handler     *Handler           // its handler; nil before and after
	recoveredBy *recovery.Recovery // from its failure; nil before
	limited     bool               // a policy or Message.Timeout limits the time of all handlers
	running     overdue.Call
	session     Session // of the handlers

	receive  pipeline.Receive
	logical  pipeline.Logical
	invoke   pipeline.Invoke
	dispatch pipeline.Dispatch
	ops      [2]transport.Operation
}

// attemptOf returns the attempt that a stage value belongs to.
func attemptOf(r *pipeline.Receive) *attempt {
	return r.Sender().(*Session).in //nolint:errcheck // newAttempt has put it there
}

// newAttempt returns the next attempt at the message.
func (in *incoming) newAttempt() *attempt {
	a := &in.first
	if a.incoming != nil {
		a = &attempt{}
	}
	m := in.Original
	if in.e.copies {
		m = settle.SharedCopy(m)
	}
	a.incoming = in
	a.session.in = a
	a.session.unit.Store, a.session.unit.Delivery, a.session.unit.ID = &in.live.units, in.Received, in.ID
	a.session.unit.Resume(a.ops[:0], nil)
	a.receive = pipeline.NewReceive(m, &a.session)
	a.receive.Queue, a.receive.Attempt = in.Queue, in.Received.Attempt()
	return a
}

// run makes the attempt.
func (a *attempt) run(ctx context.Context) outcome {
	out, err := a.handle(ctx)
	if err != nil {
		return a.fail(ctx, err)
	}
	a.leaveLimit()
	return out
}

// handle runs the message through its handlers, sends their operations and completes the message,
// unless a guard has an outcome. After an error the message is unsettled, unless a behavior failed
// last.
func (a *attempt) handle(ctx context.Context) (out outcome, err error) {
	defer panics.Catch(&err)
	for _, g := range a.road.attempt {
		if out, err := g(ctx, a); out != nil || err != nil {
			return out, err
		}
	}
	if err := a.runStages(ctx); err != nil {
		return nil, err
	}
	if a.keysEnded != nil { // a behavior has dropped the error
		return nil, pump.ErrStopping
	}
	a.session.unit.UndoFailed(ctx)
	ops, tx := a.session.unit.End()
	if tx == nil { // an open transaction is part of the work, and keeps the slot
		a.leaveLimit()
		a.Slot.Free()
	}
	if err := a.complete(ctx, ops); err != nil {
		return nil, err
	}
	return done{}, nil
}

// runStages runs the message through its behaviors and handlers.
func (a *attempt) runStages(ctx context.Context) error {
	a.observe(&a.running)
	a.live.calls.Begin(&a.running, a.Queue, a.ID, a.Slot.Goroutine())
	defer a.live.calls.End(&a.running)
	return a.e.receive(ctx, &a.receive)
}

// complete sends ops and completes the message, through the Dispatch stage.
func (a *attempt) complete(ctx context.Context, ops []transport.Operation) error {
	a.dispatch = pipeline.Dispatch{Operations: ops, Incoming: &a.receive}
	if err := a.runDispatch(ctx); err != nil {
		return err
	}
	if a.Over() {
		return nil
	}
	return a.finish(ctx, nil) // a behavior did not send the operations
}

// runDispatch runs the Dispatch stage. The watch counts the time of its behaviors.
func (a *attempt) runDispatch(ctx context.Context) error {
	if a.e.watchesDispatch {
		a.running.EnterFunction(&nameDispatch)
		a.live.calls.Begin(&a.running, a.Queue, a.ID, a.Slot.Goroutine())
		defer a.live.calls.End(&a.running)
	}
	return a.e.dispatch(ctx, &a.dispatch)
}

// finish sends ops, and what the endpoint itself sends, and completes the message.
func (a *attempt) finish(ctx context.Context, ops []transport.Operation) error {
	tx := a.session.unit.Begun()
	if a.live.outbox != nil {
		return a.store(ctx, tx, ops)
	}
	ops, err := a.live.timers.Apart(ctx, ops, a.session.unit.Cancelled())
	if err != nil {
		return err
	}
	recorder, ok := a.Received.(transport.HandledRecorder)
	if !ok || a.session.unit.Key == nil {
		return a.audit.Complete(ctx, tx, ops, &a.audited, "")
	}
	recorder.RecordHandled(a.live.inbox.Name, a.session.unit.Key)
	err = a.audit.Complete(ctx, tx, ops, &a.audited, "")
	if err != nil {
		recorder.RecordHandled("", nil) // the message may be completed with a copy for later
		return a.session.unit.Fail(&work.CommitError{Err: err})
	}
	a.live.outage.Committed()
	return nil
}

// store commits ops and the key of the message in the outbox's database, with the writes in tx
// where there is one. Then it completes the message. The notice to ServiceControl and the audit
// copy are stored too: the broker may refuse them, which concerns neither the message nor ops.
func (a *attempt) store(ctx context.Context, tx transport.Tx, ops []transport.Operation) error {
	if a.Over() {
		return settle.ErrSettled
	}
	own := a.audit.With(ctx, a.live.outbox.Cancels(a.session.unit.Cancelled()), &a.audited)
	if err := a.live.outbox.Commit(a.Context(), &a.session.unit, tx, ops, own); err != nil {
		return err
	}
	// The message is handled: a failed completion is no failure of the message.
	a.Try(ctx, a.Received.Complete, "a message was handled but could not be completed: "+
		"the broker delivers it again, and it is recognized")
	return nil
}

// dispatchAll is the end of the Dispatch stage: the operations of a message are sent, and the
// message is completed. Operations of no message are sent at once, or in the caller's transaction.
func (e *Endpoint) dispatchAll(ctx context.Context, d *pipeline.Dispatch) error {
	if d.Incoming != nil {
		a := attemptOf(d.Incoming)
		if e.watchesDispatch {
			a.live.calls.Suspend(&a.running)
			defer a.live.calls.Resume(&a.running)
		}
		return a.finish(ctx, d.Operations)
	}
	live := e.live.Load()
	if live == nil {
		return ErrNotRunning
	}
	if d.ViaOutbox {
		return live.timers.Send(ctx, d.Tx, d.Operations)
	}
	err := errNoTx
	if d.Tx == nil {
		d.Receipts, err = live.conn.Dispatch(ctx, d.Operations)
	} else if dispatcher, ok := live.conn.(transport.TxDispatcher); ok {
		d.Receipts, err = dispatcher.DispatchIn(ctx, d.Tx, d.Operations)
	}
	return copies.Single(err)
}

// fail returns the outcome of an attempt that ended with err. The transaction is rolled back. The
// slot is freed, unless the next attempt is made at once.
func (a *attempt) fail(ctx context.Context, err error) outcome {
	a.leaveLimit()
	db, repeatable := a.live.outage, a.repeatable(err)
	alone := db.FailsAlone(ctx, &a.Delivery, &a.session.unit, err, repeatable)
	if !a.Over() && (alone || repeatable) {
		switch {
		case a.conflicts.n < maxConflicts && (!alone || !timedOut(err)):
			a.session.unit.Rollback(ctx)
			return a.afterConflict(ctx, err)
		case work.IsConflict(err) && !a.CompletedFirst():
			a.session.unit.Rollback(ctx)
			return a.contended(ctx, err)
		case !alone && db.BreaksAlone(ctx, &a.Delivery, &a.session.unit, err):
			err, alone = outage.BlameConnection(err), true
		}
	}
	a.Slot.Free()
	if a.Over() {
		return failed{err}
	}
	_, tx := a.session.unit.End()
	a.session.unit.Rollback(ctx)
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

// awaitDatabase returns the outcome of an attempt that failed because the database of the outbox or
// inbox cannot be used; nil of any other attempt. The message waits, without a slot, until the
// database answers. While the database stores other rows, the message waits for a time.
func (a *attempt) awaitDatabase(ctx context.Context, tx transport.Tx, err error) outcome {
	db := a.live.outage
	down := db.Down(ctx, &a.Delivery, &a.session.unit, tx, err)
	if down == nil || ctx.Err() != nil {
		return nil
	}
	w := &wait{late: untouched{outage.MaxPause}}
	if !db.IsImpeded(ctx, tx, down) {
		w.after, w.event, w.keeps = forever, db.Began(ctx, down), keepsKeys
		return again{w}
	}
	if w.after, err = a.impediment.Next(ctx, &a.Delivery, err); err != nil {
		return failed{err}
	}
	return again{w}
}

// throttle returns the outcome of an attempt that failed with err. While attempts are limited, the
// failure uses up no retry, unless another attempt cannot succeed.
func (a *attempt) throttle(ctx context.Context, err error) outcome {
	if a.turn.Limit == nil {
		return failed{err}
	}
	f, mendable := a.Facts(err), false
	if a.asFunction(new(overdue.Call), &nameMatchers, func() error {
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

// repeatable reports whether the transaction of an attempt that failed with err may succeed when
// the attempt is repeated. After a commit with an unknown outcome, and after the commit of another
// delivery of the message, the next attempt finds that the message was handled.
func (a *attempt) repeatable(err error) bool {
	if stored := a.session.unit.Failure(); a.session.unit.Key != nil &&
		(errors.Is(stored, transport.ErrAlreadyHandled) || errors.Is(stored, transport.ErrOutcomeUnknown)) {
		return true
	}
	// err may wrap itself. A statement that a time limit ends may break its connection, which looks
	// like a conflict.
	return errtree.Find[*audit.IncompleteError](err) != nil || a.session.unit.Conflict(err) && !timedOut(err)
}

// Origin implements [recovery.Attempt]: the place is the handler that was invoked, else the stage.
func (a *attempt) Origin() fault.Frame {
	const stages = "github.com/holdfast-go/holdfast/pipeline."
	switch {
	case a.handler != nil:
		return a.handler.frame()
	case a.dispatch.Incoming != nil:
		return fault.Frame{Func: stages + "Dispatch"}
	}
	return fault.Frame{Func: stages + "Receive"}
}

// interrupted returns the outcome of an attempt that was cut short, which is no failure of the
// message; nil if the attempt was not cut short. A message that was completed first cannot return to its queue.
func (a *attempt) interrupted(ctx context.Context, err error) outcome {
	switch cause := context.Cause(ctx); {
	case cause == nil || a.CompletedFirst():
		return nil
	case errors.Is(cause, transport.ErrLeaseLost),
		errors.Is(cause, pump.ErrStopping) && (isCanceled(err) || isStopping(err)):
		return a.cutShort(ctx)
	}
	return nil
}

// isCanceled and isStopping match the errors of a handler that ended because its context ended. The
// error is the user's, and may wrap itself.
var isCanceled, isStopping = recoverability.Is(context.Canceled), recoverability.Is(pump.ErrStopping)

// enterLimit waits until the limiter of the type, if any, admits the message. A behavior may have
// the message decoded again, perhaps as another type.
func (a *attempt) enterLimit(ctx context.Context, l *typelimit.Limiter) error {
	if l == nil || a.limiter == l {
		return nil
	}
	a.leaveLimit()
	if err := l.Enter(ctx, a.Slot); err != nil {
		return err
	}
	a.limiter = l
	return nil
}

// leaveLimit admits the next message, before the slot is freed for it.
func (a *attempt) leaveLimit() {
	if a.limiter != nil {
		a.limiter.Leave()
		a.limiter = nil
	}
}

// maxConflicts bounds the attempts at one delivery whose transaction lost a conflict.
const maxConflicts = 10

// conflicts counts the lost conflicts of a delivery, which use up no retry.
type conflicts struct {
	n     int
	pause backoff.Backoff // jittered, so that two transactions do not meet again
}

// afterConflict returns the outcome of an attempt whose transaction was rolled back because of err.
func (in *incoming) afterConflict(ctx context.Context, err error) outcome {
	c := &in.conflicts
	if c.n++; c.n == 1 {
		c.pause = backoff.Backoff{Min: 5 * time.Millisecond, Max: 200 * time.Millisecond}
	}
	in.Log.InfoContext(ctx, "a transaction could not be completed: the attempt is repeated",
		slog.String("message", in.LogID()), slog.Int("repeats", c.n), slog.Any("error", err))
	return again{&wait{after: c.pause.Next(), keeps: keepsSlot}}
}

// contended returns the outcome of a message whose transaction lost conflicts at each attempt.
func (in *incoming) contended(ctx context.Context, err error) outcome {
	in.Slot.Free()
	in.Log.WarnContext(ctx, "a transaction lost conflicts at each attempt: the message returns to its queue, without a retry used up",
		slog.String("message", in.LogID()), slog.Int("attempts", in.conflicts.n+1), slog.Any("error", err))
	return back{untouched{in.conflicts.pause.Next()}}
}
