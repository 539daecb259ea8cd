package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/typelimit"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// outcome is how an attempt ended.
//
//sumtype:decl
type outcome interface{ isOutcome() }

type (
	// completed: the handlers succeeded, and the message is settled.
	completed struct{}
	// failed: recoverability decides. The message may be settled already, when a behavior failed
	// afterwards.
	failed struct{ err error }
	// conflicted: the transaction lost a conflict, such as a deadlock, was refused while the
	// database committed others, or contained a message to ServiceControl that had no queue.
	// Nothing has happened.
	conflicted struct{ err error }
	// interrupted: the endpoint stops. The message has not failed.
	interrupted struct{}
	// throttled: attempts are limited, so that no retry is used up. The next attempt is made here
	// if retry is set, else by whichever instance receives the message later.
	throttled struct{ retry bool }
	// busy: a queue that the message sends to takes no messages.
	busy struct{ queue string }
	// unstored: the database of the outbox or inbox does not answer, so that no retry is used up.
	unstored struct{ err error }
	// impeded: the handler or the commit found a full disk, and the database stores other messages,
	// so that no retry is used up.
	impeded struct{ err error }
	// outstayed: the message waited for its keys for as long as the broker lets a message be held.
	outstayed struct{}
	// contended: the transaction lost conflicts at each attempt. The message returns to its queue
	// with no retry used up.
	contended struct{ err error }
	// suspected: the process may crash over the message. It was not handled.
	suspected struct{}
	// leaseLost: the message is not, or no longer, this process's to settle.
	leaseLost struct{}
)

func (completed) isOutcome()   {}
func (failed) isOutcome()      {}
func (conflicted) isOutcome()  {}
func (interrupted) isOutcome() {}
func (throttled) isOutcome()   {}
func (busy) isOutcome()        {}
func (unstored) isOutcome()    {}
func (impeded) isOutcome()     {}
func (outstayed) isOutcome()   {}
func (contended) isOutcome()   {}
func (suspected) isOutcome()   {}
func (leaseLost) isOutcome()   {}

// attempt is one attempt at a message: received, decoded, handled and settled.
type attempt struct {
	*incoming

	startedAt   time.Time          // set for audit copies only
	limiter     *typelimit.Limiter // of the message's type, if the attempt has entered it
	calls       []call             // of the handlers
	bases       []baseValue
	keys        []string  // of the calls; nil where no handler has a key
	at          int       // the call being invoked
	handler     *Handler  // its handler; nil before and after
	recoveredBy *recovery // from its failure; nil before
	limited     bool      // a policy or Message.Timeout limits the time of all handlers
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
	m := in.original
	if in.e.copies {
		m = sharedCopy(m)
	}
	a.incoming = in
	a.session.in, a.session.ops = a, a.ops[:0]
	a.receive = pipeline.NewReceive(m, &a.session)
	a.receive.Queue, a.receive.Attempt = in.queue, in.delivery.Attempt()
	return a
}

// run makes the attempt.
func (a *attempt) run(ctx context.Context) outcome {
	if out := a.admit(ctx); out != nil {
		return out
	}
	if a.e.cfg.AuditQueue != "" {
		a.startedAt = time.Now()
	}
	out, err := a.handle(ctx)
	if err != nil {
		return a.fail(ctx, err)
	}
	a.leaveLimit()
	return out
}

// handle runs the message through its handlers, sends their operations and completes the message.
// After an error the message is unsettled, unless a behavior failed last.
func (a *attempt) handle(ctx context.Context) (out outcome, err error) {
	defer panics.Catch(&err)
	if a.e.cfg.Transactions == None && !a.settlement.completeFirst(ctx) {
		return leaseLost{}, nil
	}
	if reason := a.receive.Message.Undecodable; reason != nil {
		return nil, recoverability.Unrecoverable(&undecodableError{fmt.Errorf("undecodable message: %w", reason)})
	}
	if a.exclusive == nil {
		a.live.slow.Received(a.receive.Attempt.N)
	}
	if err := a.live.outbox.overfull(); err != nil {
		return nil, a.session.storeFailed(err)
	}
	if inbox := a.live.inbox; inbox != nil {
		handled, err := inbox.recognize(ctx, a)
		if err != nil {
			return nil, err
		}
		if handled { // also before quarantine: a message that was handled must not move there
			a.completeAgain(ctx)
			return completed{}, nil
		}
	}
	if a.suspect() {
		return suspected{}, nil
	}
	if a.exclusive != nil && a.exclusive.parked {
		return nil, a.exclusive.crashLoop()
	}
	if err := a.runStages(ctx); err != nil {
		return nil, err
	}
	if a.keyed.ended != nil { // a behavior has dropped the error
		return nil, pump.ErrStopping
	}
	a.session.finish(ctx)
	ops, tx := a.session.end()
	if tx == nil { // an open transaction is part of the work: it keeps the slot
		a.leaveLimit()
		a.slot.Free()
	}
	if err := a.complete(ctx, ops); err != nil {
		return nil, err
	}
	return completed{}, nil
}

// runStages runs the message through its behaviors and handlers.
func (a *attempt) runStages(ctx context.Context) error {
	a.observe(&a.running)
	a.live.calls.Begin(&a.running, a.queue, a.id, a.slot.Goroutine())
	defer a.live.calls.End(&a.running)
	return a.e.receive(ctx, &a.receive)
}

// complete sends ops and completes the message, through the Dispatch stage.
func (a *attempt) complete(ctx context.Context, ops []transport.Operation) error {
	a.dispatch = pipeline.Dispatch{Operations: ops, Incoming: &a.receive}
	if err := a.runDispatch(ctx); err != nil {
		return err
	}
	if a.settlement.over() {
		return nil
	}
	return a.finish(ctx, nil) // a behavior did not send the operations
}

// runDispatch runs the Dispatch stage. The watch counts the time of its behaviors.
func (a *attempt) runDispatch(ctx context.Context) error {
	if a.e.watchesDispatch {
		a.running.EnterFunction(&nameDispatch)
		a.live.calls.Begin(&a.running, a.queue, a.id, a.slot.Goroutine())
		defer a.live.calls.End(&a.running)
	}
	return a.e.dispatch(ctx, &a.dispatch)
}

// finish sends ops, and what the endpoint itself sends, and completes the message.
func (a *attempt) finish(ctx context.Context, ops []transport.Operation) error {
	_, tx := a.session.end()
	if a.live.outbox != nil {
		return a.store(ctx, tx, ops)
	}
	ops, err := a.live.timers.apart(ctx, ops, a.session.cancelled())
	if err != nil {
		return err
	}
	recorder, ok := a.delivery.(transport.HandledRecorder)
	if !ok || a.session.key == nil {
		return a.completeProcessed(ctx, tx, ops, a, "")
	}
	recorder.RecordHandled(a.live.inbox.name, a.session.key)
	err = a.completeProcessed(ctx, tx, ops, a, "")
	if err != nil {
		recorder.RecordHandled("", nil) // the message may be completed with a copy for later
		return a.session.storeFailed(&commitError{err})
	}
	a.live.outage.committed()
	return nil
}

// dispatchAll is the end of the Dispatch stage: the operations are sent, and the message that they
// belong to is completed. Operations that belong to no message are sent at once, or in the caller's
// transaction.
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
		return live.timers.send(ctx, d.Tx, d.Operations)
	}
	err := errNoTx
	if d.Tx == nil {
		d.Receipts, err = live.conn.Dispatch(ctx, d.Operations)
	} else if dispatcher, ok := live.conn.(transport.TxDispatcher); ok {
		d.Receipts, err = dispatcher.DispatchIn(ctx, d.Tx, d.Operations)
	}
	return onlyError(err)
}

// onlyError returns the error of the operation where a dispatch of one has failed.
func onlyError(err error) error {
	if failed, ok := errors.AsType[*transport.DispatchError](err); ok && failed.Total == 1 {
		return failed.Ops[0].Err
	}
	return err
}

// fail returns the outcome of an attempt that ended with err. It rolls the transaction back, and
// frees the slot unless the next attempt is made in it at once.
func (a *attempt) fail(ctx context.Context, err error) outcome {
	a.leaveLimit()
	repeatable := a.repeatable(err)
	alone := a.failsAlone(ctx, err, repeatable)
	if !a.settlement.over() && (alone || repeatable) {
		switch {
		case a.conflicts.n < maxConflicts && (!alone || !timedOut(err)):
			a.settlement.rollback(ctx, &a.session)
			return conflicted{err}
		case isConflict(err) && !a.settlement.completedFirst():
			a.settlement.rollback(ctx, &a.session)
			return contended{err}
		case !alone && a.breaksAlone(ctx, err):
			err = &brokenError{errtree.Mark{Err: err}}
			alone = true
		}
	}
	a.slot.Free()
	if a.settlement.over() {
		return failed{err}
	}
	_, tx := a.session.end()
	a.settlement.rollback(ctx, &a.session)
	if a.keyed.ended != nil {
		if out := a.interrupted(ctx, pump.ErrStopping); out != nil {
			return out
		}
		return a.keyed.ended
	}
	if queue := a.settlement.busyQueue(); queue != "" && ctx.Err() == nil {
		return busy{queue}
	}
	if alone {
		err = loneError(err)
	} else if down := a.storeAway(ctx, tx, err); down != nil && ctx.Err() == nil {
		if a.isImpeded(ctx, tx, down) {
			return impeded{err}
		}
		return unstored{down}
	}
	if out := a.interrupted(ctx, err); out != nil {
		return out
	}
	if a.throttle(ctx, err) {
		return throttled{retry: a.throttling.turn.Tries <= retriesInPlace}
	}
	return failed{err}
}

// repeatable reports whether the transaction of an attempt that failed with err may succeed when it
// is repeated. After a commit with an unknown outcome, and one that another delivery of the message
// was ahead of, the next attempt finds that the message was handled.
func (a *attempt) repeatable(err error) bool {
	if stored := a.session.storeError(); a.session.key != nil &&
		(errors.Is(stored, transport.ErrAlreadyHandled) || errors.Is(stored, transport.ErrOutcomeUnknown)) {
		return true
	}
	// err may wrap itself. A statement that a time limit ends may break its connection, which looks
	// like a conflict.
	return errtree.Find[*incompleteError](err) != nil || conflict(&a.session, err) && !timedOut(err)
}

// origin returns the place of an error that has no stack: the handler that was invoked, else the
// stage.
func (a *attempt) origin() fault.Frame {
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
// message; nil of any other. A message that was completed first cannot return to its queue.
func (a *attempt) interrupted(ctx context.Context, err error) outcome {
	switch cause := context.Cause(ctx); {
	case cause == nil || a.settlement.completedFirst():
		return nil
	case errors.Is(cause, transport.ErrLeaseLost):
		a.settlement.lose(ctx, cause)
		return leaseLost{}
	case errors.Is(cause, pump.ErrStopping) && (isCanceled(err) || isStopping(err)):
		return interrupted{}
	}
	return nil
}

// isCanceled and isStopping match the errors of a handler that ended because its context did. The
// error is the user's, and may be any: it may wrap itself.
var isCanceled, isStopping = recoverability.Is(context.Canceled), recoverability.Is(pump.ErrStopping)
