package recovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// execution carries out an action on a failed message. If the broker refuses, execution takes the
// next fallback:
//
//	a copy that is refused for its content: fewer and shorter fault headers, in the end packed ones
//	a delayed copy that is refused:         the error queue
//	an error queue that refuses:            the configured error queue
//	the configured error queue too:         the dead-letter queue of the broker, if any
//
// After the last the message waits for the error queue, if it may, and is stuck otherwise. A
// broker without an answer refuses nothing: then no further fallback is tried.
type execution struct {
	*Failed

	rec     *pipeline.Recover
	sent    []transport.Operation      // by the Recover stage, to be sent with the message
	wanted  recoverability.MoveToError // the move that was tried last
	native  bool                       // the broker's dead-letter queue is a fallback of the move
	instead recoverability.Action      // the refused action; nil if the move was decided
	tried   bool                       // a move to an error queue was tried
	again   bool                       // the move is tried again: once, and without lines in the log
	until   time.Time                  // of the held delivery; zero: the broker sets no end
}

// keepDelivery sends what the Recover stage sent, and leaves the message as it is, for another
// attempt or for a verb that completes nothing. What the stage wrote is undone.
func (x *execution) keepDelivery(ctx context.Context) error {
	x.unit.Rollback(ctx)
	if err := x.Send(x.sent); err != nil {
		return err
	}
	x.sent = nil
	return nil
}

func (x *execution) delay(ctx context.Context, a recoverability.Delay) error {
	f := x.rec.Failure
	f.Headers = x.Original.Headers
	full := fault.DelayHeaders(f, x.rec.Fault, a.For)
	short := full.Clone()
	short.Del(header.HoldfastHistory)
	short.Del(header.HoldfastRetryLastError)
	err := x.to(ctx, x.Queue, a.For, func(yield func(copies.Form, *transport.Message) bool) {
		_ = yield(copies.Full, x.CopyTo(x.Queue, full, 0).Message) &&
			yield(copies.Trimmed, x.CopyTo(x.Queue, short, 0).Message)
	})
	if err == nil || !copies.Refused(err) {
		return err
	}
	x.LogError(ctx, slog.LevelError,
		"a delayed retry was refused: moving the message to the error queue", err)
	// Config.OnFinalFailure is called after all. The operations before the call are still to be sent.
	tx := x.unit.Begun()
	x.newSession()
	x.unit.Resume(x.sent, tx)
	err = x.onFinalFailure(ctx, x.rec.Failure)
	x.sent, _ = x.unit.End()
	if err != nil {
		return err
	}
	return x.toErrorInstead(ctx, a, true)
}

// toErrorInstead moves the message to the configured error queue, because action a was refused.
func (x *execution) toErrorInstead(
	ctx context.Context, a recoverability.Action, native bool,
) error {
	x.instead = a
	err := x.moveToError(ctx, x.Config.ErrorQueue, native)
	if err == nil {
		x.tookFallback(recoverability.FallbackError, a)
	}
	return err
}

func (x *execution) deadLetter(ctx context.Context, a recoverability.DeadLetter) error {
	err := x.toDeadLetters(ctx, a)
	if err == nil || errors.Is(err, transport.ErrOutcomeUnknown) {
		return err
	}
	x.LogError(ctx, slog.LevelError,
		"the dead-letter queue refused a message: moving it to the error queue", err)
	return x.toErrorInstead(ctx, a, false)
}

func (x *execution) toDeadLetters(ctx context.Context, a recoverability.DeadLetter) error {
	d := x.Received.(transport.DeadLetterer) //nolint:errcheck // the caller has seen that it is one
	if err := x.keepDelivery(ctx); err != nil {
		return err
	}
	return x.Settle(ctx, func(ctx context.Context) error { return d.DeadLetter(ctx, a.Reason) })
}

// lineError is the last refusal of an error queue for which other messages wait. The message was
// not sent.
type lineError struct{ errtree.Mark }

// moveToError moves the message to the queue, or to a fallback; to the broker's dead-letter queue
// if native is set.
func (x *execution) moveToError(ctx context.Context, queue string, native bool) error {
	x.wanted, x.native, x.tried = recoverability.MoveToError{Queue: queue}, native, true
	if err := x.Room.Refusal(queue); err != nil && x.isHeldable() {
		x.logAction(ctx, x.wanted, x.rec.Failure)
		return &lineError{errtree.Mark{Err: err}}
	}
	return x.toErrorQueues(ctx)
}

// isHeldable reports whether the message may wait and can be moved later: a transaction cannot be
// kept open.
func (x *execution) isHeldable() bool {
	return x.MayWait && x.Exclusive == nil && x.unit.Begun() == nil && !x.Over() && !x.CompletedFirst()
}

func (x *execution) toErrorQueues(ctx context.Context) error {
	wanted := x.wanted
	err := x.toError(ctx, wanted)
	if other := x.Config.ErrorQueue; copies.Refused(err) && wanted.Queue != other {
		if !x.again {
			x.LogError(ctx, slog.LevelError,
				"an error queue refused a message: trying the configured one", err)
		}
		if err = x.toError(ctx, recoverability.MoveToError{Queue: other}); err == nil {
			x.tookFallback(recoverability.FallbackQueue, wanted)
		}
	}
	if _, ok := x.Received.(transport.DeadLetterer); !ok || !x.native || x.CompletedFirst() || !copies.Refused(err) {
		return err
	}
	dead := recoverability.DeadLetter{Reason: fmt.Sprintf("error queue %q: %.500v", wanted.Queue, err)}
	if !x.again {
		x.LogError(ctx, slog.LevelError,
			"the error queue refused a message: trying the broker's dead-letter queue", err)
		x.logAction(ctx, dead, x.rec.Failure)
	}
	if err := x.toDeadLetters(ctx, dead); err != nil {
		return err
	}
	x.rec.Action = dead
	x.tookFallback(recoverability.FallbackDeadLetter, wanted)
	return nil
}

func (x *execution) toError(ctx context.Context, a recoverability.MoveToError) error {
	if !x.again {
		x.logAction(ctx, a, x.rec.Failure)
	}
	whole := x.CopyTo(a.Queue, x.Original.Headers.CopyOnWrite(), 0).Message
	err := x.to(ctx, a.Queue, 0, copies.ForErrorQueue(whole, x.rec.Fault))
	if err == nil {
		x.rec.Action = a
	}
	return err
}

// fallbackOf are the fallbacks of the forms of a copy.
var fallbackOf = map[copies.Form]recoverability.Fallback{
	copies.Trimmed: recoverability.FallbackTrimmed, copies.Minimal: recoverability.FallbackMinimal,
	copies.Packed: recoverability.FallbackPacked, copies.Original: recoverability.FallbackOriginal,
}

// to sends the first candidate of a copy that is not refused for its content. The broker decides: a
// bound of the driver for sent headers does not concern received headers.
func (x *execution) to(
	ctx context.Context, queue string, after time.Duration,
	candidates iter.Seq2[copies.Form, *transport.Message],
) (err error) {
	for form, m := range candidates {
		err = x.replace(ctx, transport.Operation{Message: m, Queue: queue, After: after})
		if fallback := fallbackOf[form]; err == nil && fallback != "" {
			x.Log.WarnContext(ctx,
				"the whole copy of a failed message was refused: one with fewer headers was sent",
				slog.String("message", x.LogID()), slog.String("queue", queue), slog.String("headers", string(fallback)))
			x.tookFallback(fallback, x.rec.Action)
		}
		if !copies.Refused(err) || !copies.OfMessage(copies.ErrorOf(err, len(x.sent))) {
			return err
		}
	}
	return err
}

// replace sends op in the place of the message. The operations of the stage are sent in one
// unit with op, or otherwise before op, and once. After a temporary refusal replace tries again.
func (x *execution) replace(ctx context.Context, op transport.Operation) error {
	if err := x.commitApart(); err != nil {
		return &copies.StrandedError{Mark: errtree.Mark{Err: err}}
	}
	if !x.IsUnit(x.unit.Begun()) {
		if err := x.Send(x.sent); err != nil {
			return &copies.StrandedError{Mark: errtree.Mark{Err: err}}
		}
		x.sent = nil
	}
	ops := append(slices.Clip(x.sent), op)
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for try := 1; ; try++ {
		err := x.of(x.Complete(ctx, x.unit.Begun(), ops), len(x.sent))
		if x.again || try == settle.Tries || !copies.Refused(err) || copies.Permanent(err) ||
			pause.Wait(x.Context()) != nil {
			return err
		}
	}
}

// commitApart commits the writes and operations of the stage in the database of the outbox, if any,
// before the message is moved at its broker. The move itself does not need the database.
func (x *execution) commitApart() error {
	tx := x.unit.Begun()
	if tx == nil || x.Commit == nil {
		return nil
	}
	if err := x.Commit(x.Context(), x.unit, tx, x.sent, nil); err != nil {
		return err
	}
	x.unit.Detach()
	x.sent = nil
	return nil
}

// of returns err unchanged if err concerns operation i, or no operation in particular.
func (x *execution) of(err error, i int) error {
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		return err
	}
	concerns := func(op transport.OpError) bool { return op.Index == i }
	if x.unit.Begun() == nil && slices.ContainsFunc(refusal.Ops, concerns) {
		return err
	}
	return &copies.StrandedError{Mark: errtree.Mark{Err: err}}
}

// decidedDelay is the delay of a copy of a held message in the endpoint's own queue.
const decidedDelay = 30 * time.Second

// EndsSoon implements [held.Message]: after three quarters of the time for which the message may be
// unsettled, or after half of a lease without a renewal, the broker is about to deliver the message
// again.
func (x *execution) EndsSoon() bool {
	return x.Slot.LeaseLate() || !x.until.IsZero() && time.Until(x.until) <= x.Limits.MaxHold/4
}

// TryAgain implements [held.Message]: the message is moved once more.
func (x *execution) TryAgain(ctx context.Context) (err error) {
	defer panics.Catch(&err)
	place := x.Notifier.Next(x.FailureKey())
	report := func() {}
	defer func() { x.Report(place, report) }()
	if err := x.toErrorQueues(ctx); err != nil {
		return err
	}
	if x.instead != nil {
		x.tookFallback(recoverability.FallbackError, x.instead)
	}
	report = x.carriedOut(ctx, x.rec)
	return nil
}

// Leave implements [held.Message]: a copy outside of the process replaces the message, in the
// dead-letter queue of the endpoint, or otherwise in the queue of the message. Whoever receives the
// copy runs no handler: see moveDecided. If no queue accepts the copy, the message is requeued.
func (x *execution) Leave(ctx context.Context) {
	defer x.Exits.Enter()()
	for _, exit := range x.exits() {
		if !x.Exits.Answers(exit.Queue) {
			continue
		}
		err := x.leaveTo(ctx, exit)
		switch {
		case err == nil:
			x.ForgetFailures()
			return
		case x.Over():
			return
		case copies.Unanswered(err):
			x.Exits.NoAnswer(exit.Queue)
		}
	}
	x.Retry(ctx)
}

// exits returns the places for the copy, the best first.
func (x *execution) exits() (all []transport.Operation) {
	if queue := x.Accepting(); queue != "" {
		all = append(all, transport.Operation{Queue: queue})
	}
	if most := x.Limits.MaxDelay; most > 0 {
		all = append(all, transport.Operation{Queue: x.Queue, After: min(decidedDelay, most)})
	}
	return all
}

func (x *execution) leaveTo(ctx context.Context, exit transport.Operation) (err error) {
	defer panics.Catch(&err)
	whole := x.CopyTo(exit.Queue, x.Original.Headers.CopyOnWrite(), 0).Message
	return x.to(ctx, exit.Queue, exit.After, func(yield func(copies.Form, *transport.Message) bool) {
		for form, m := range copies.ForErrorQueue(whole, x.rec.Fault) {
			m.Headers = fault.DecidedHeaders(m.Headers, x.wanted.Queue)
			if !yield(form, m) {
				return
			}
		}
	})
}
