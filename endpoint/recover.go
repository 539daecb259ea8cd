package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// fail deals with a message that was not processed: it is settled in the end,
// or left to the broker to hand out again.
func (in *incoming) fail(ctx context.Context, err error) {
	if in.settled {
		in.log().ErrorContext(ctx, "a behavior failed after its message had been dealt with", slog.String("message", in.id), slog.Any("error", err))
		return
	}
	in.rollback(ctx)
	if in.interrupted(ctx, err) {
		return
	}
	rec := &pipeline.Recover{Receive: in.renewSession(), Failure: in.failure(err)}
	rec.Action = in.e.decide(ctx, rec.Failure)
	rec.Fault = recoverability.FaultHeaders(rec.Failure, in.e.host)
	if err := in.runRecover(ctx, rec); err != nil {
		in.log().ErrorContext(ctx, "the Recover stage failed: what it sent and wrote is left out", slog.String("message", in.id), slog.Any("error", err))
		in.rollback(ctx)
		in.session = &Session{in: in}
	}
	if in.settled {
		return
	}
	if err := in.carryOut(ctx, rec); err != nil {
		in.hold(ctx, err)
	}
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
		return true
	case errors.Is(cause, pump.ErrStopping) && cancelled(err):
		if err := in.settle(ctx, in.delivery.Release); err != nil {
			in.log().WarnContext(ctx, "a message could not be released", slog.String("message", in.id), slog.Any("error", err))
		}
		return true
	}
	return false
}

// cancelled tells whether a handler ended because its context did. The error is the
// user's, and its methods may panic.
func cancelled(err error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	return errors.Is(err, context.Canceled) || errors.Is(err, pump.ErrStopping)
}

func (in *incoming) failure(err error) recoverability.Failure {
	now := time.Now()
	r := &in.receive
	f := recoverability.Failure{
		Err: err, MessageID: in.id, Type: firstType(r.Message.Headers),
		Headers: r.Message.Headers, Body: r.Message.Body, Queue: in.queue,
		Attempt: r.Attempt.N, AttemptExact: r.Attempt.Exact, Immediate: r.Attempt.N,
		Delayed:      recoverability.DelayedRetries(r.Message.Headers),
		FirstFailure: recoverability.FirstFailure(r.Message.Headers, now), Now: now,
	}
	if !f.AttemptExact {
		f.Immediate = in.e.failures.add(in.id)
	}
	return f
}

func firstType(h header.Map) string {
	for name := range header.TypeNames(h.Get(header.EnclosedMessageTypes)) {
		return name
	}
	return ""
}

// decide asks the policy. One that panics or decides nothing gives the message up.
func (e *Endpoint) decide(ctx context.Context, f recoverability.Failure) (action recoverability.Action) {
	fallback := recoverability.MoveToError{Queue: e.recoverability.ErrorQueue}
	defer func() {
		if v := recover(); v != nil {
			e.cfg.Logger.ErrorContext(ctx, "the recoverability policy panicked: moving the message to the error queue",
				slog.String("message", f.MessageID), slog.String("panic", panicText(v)))
			action = fallback
		}
	}()
	policy := e.recoverability.Policy
	if policy == nil {
		policy = e.recoverability.Decide
	}
	if action = policy(f); action == nil {
		return fallback
	}
	return action
}

func (in *incoming) runRecover(ctx context.Context, rec *pipeline.Recover) (err error) {
	defer catchPanic(&err)
	return in.e.recover(ctx, rec)
}

// recoverEnd is the end of the Recover stage.
func (e *Endpoint) recoverEnd(ctx context.Context, rec *pipeline.Recover) error {
	in := attempt(rec.Receive)
	if in.settled {
		return errSettled
	}
	err := in.carryOut(ctx, rec)
	if err != nil && !in.session.used() { // else fail tries again without what was sent and written
		in.settled = true
		in.hold(ctx, err)
		return nil
	}
	return err
}

// carryOut does what was decided. An error means that the message is unsettled.
func (in *incoming) carryOut(ctx context.Context, rec *pipeline.Recover) (err error) {
	defer catchPanic(&err)
	sent, _ := in.session.end()
	rec.Action = in.possible(ctx, rec.Action)
	in.logAction(ctx, rec.Action, rec.Failure)
	switch a := rec.Action.(type) {
	case recoverability.Retry:
		err = in.settleAfter(ctx, sent, in.delivery.Retry)
	case recoverability.DeadLetter:
		d := in.delivery.(transport.DeadLetterer)
		err = in.settleAfter(ctx, sent, func(ctx context.Context) error { return d.DeadLetter(ctx, a.Reason) })
	case recoverability.Delay:
		err = in.finish(ctx, append(sent, in.copyTo(in.queue, recoverability.DelayHeaders(rec.Failure), a.For)))
	case recoverability.MoveToError:
		headers := recoverability.ErrorHeaders(in.receive.Message.Headers, rec.Fault)
		err = in.finish(ctx, append(sent, in.copyTo(a.Queue, headers, 0)))
	case recoverability.Discard:
		err = in.finish(ctx, sent)
	}
	if err != nil {
		return err
	}
	in.settled = true
	if _, again := rec.Action.(recoverability.Retry); !again && !rec.Failure.AttemptExact {
		in.e.failures.forget(in.id)
	}
	return nil
}

// settleAfter sends ops and settles the message by a verb that completes nothing, so that
// what the Recover stage wrote is undone.
func (in *incoming) settleAfter(ctx context.Context, ops []transport.Operation, verb func(context.Context) error) error {
	in.rollback(ctx)
	if err := in.send(ops); err != nil {
		return err
	}
	return in.settle(ctx, verb)
}

// possible is the action, or a move to the error queue where the transport or mode
// cannot do it.
func (in *incoming) possible(ctx context.Context, action recoverability.Action) recoverability.Action {
	toError := recoverability.MoveToError{Queue: in.e.recoverability.ErrorQueue}
	none := in.taken
	var why string
	switch a := action.(type) {
	case recoverability.Retry:
		if !none {
			return a
		}
		why = "transaction mode None has no retries"
	case recoverability.Delay:
		a.For = max(0, a.For)
		switch {
		case none:
			why = "transaction mode None has no retries"
		case in.live.limits.MaxDelay == 0:
			why = "the transport offers no delays"
		case a.For > in.live.limits.MaxDelay:
			why = fmt.Sprintf("the delay is over the transport's %v", in.live.limits.MaxDelay)
		default:
			return a
		}
	case recoverability.MoveToError:
		if a.Queue == "" {
			return toError
		}
		return a
	case recoverability.DeadLetter:
		if _, ok := in.delivery.(transport.DeadLetterer); ok && !none {
			return a
		}
		why = "the transport has no dead-letter queue"
	case recoverability.Discard:
		return a
	default:
		why = fmt.Sprintf("%T is no action", action)
	}
	in.log().WarnContext(ctx, "an action cannot be carried out: moving the message to the error queue",
		slog.String("message", in.id), slog.Any("action", action), slog.String("reason", why))
	return toError
}

// copyTo is the message as it was received, to be sent to a queue.
func (in *incoming) copyTo(queue string, headers header.Map, after time.Duration) transport.Operation {
	headers.SetDefault(header.MessageID, in.id)
	return transport.Operation{
		Message: &transport.Message{ID: in.id, Headers: headers, Body: in.receive.Message.Body},
		Queue:   queue, After: after,
	}
}
