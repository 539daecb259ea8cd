package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// wayOut gets a failed message out of its queue. Where one way is barred it takes the next:
//
//	a queue without room for the headers:   fewer and shorter fault headers, in the end none
//	a delayed copy that is refused:         the error queue
//	an error queue that refuses:            the configured one, where that is another
//	that one too:                           the broker's dead-letter queue, where it has one
//
// Behind the last is [incoming.hold]: the message stays. A broker that does not answer bars
// nothing; then the message stays at once.
type wayOut struct {
	in   *incoming
	rec  *pipeline.Recover
	sent []transport.Operation // by the Recover stage, to leave with the message
}

// settle sends what there is to send and settles the message by a verb that completes nothing, so
// that what the Recover stage wrote is undone.
func (w *wayOut) settle(ctx context.Context, verb func(context.Context) error) error {
	w.in.rollback(ctx)
	if err := w.in.send(w.sent); err != nil {
		return err
	}
	w.sent = nil
	return w.in.settle(ctx, verb)
}

func (w *wayOut) delay(ctx context.Context, a recoverability.Delay) error {
	f := w.rec.Failure
	f.Headers = w.in.original.Headers
	full := fault.DelayHeaders(f, w.rec.Fault)
	short := full.Clone()
	short.Del(header.HoldfastHistory)
	err := w.to(ctx, w.in.queue, a.For, []rung{{headers: full}, {FallbackTrimmed, short}})
	if err == nil || !barred(err) {
		return err
	}
	w.warn(ctx, "a delayed retry was refused: moving the message to the error queue", err)
	if err := w.giveUp(ctx); err != nil {
		return err
	}
	if err := w.moveToError(ctx, w.in.live.recoverability.ErrorQueue, true); err != nil {
		return err
	}
	w.in.fallBack(FallbackError, a)
	return nil
}

// giveUp has Config.OnFinalFailure called after all, with what was sent before it still to leave.
func (w *wayOut) giveUp(ctx context.Context) error {
	_, tx := w.in.session.end()
	w.in.session = &Session{in: w.in, ops: w.sent, tx: tx}
	err := w.in.onFinalFailure(ctx, w.rec.Failure)
	w.sent, _ = w.in.session.end()
	return err
}

func (w *wayOut) deadLetter(ctx context.Context, a recoverability.DeadLetter) error {
	err := w.handOver(ctx, a)
	if err == nil || errors.Is(err, transport.ErrOutcomeUnknown) {
		return err
	}
	w.warn(ctx, "the broker's dead-letter queue refused a message: moving it to the error queue", err)
	if err := w.moveToError(ctx, w.in.live.recoverability.ErrorQueue, false); err != nil {
		return err
	}
	w.in.fallBack(FallbackError, a)
	return nil
}

func (w *wayOut) handOver(ctx context.Context, a recoverability.DeadLetter) error {
	d := w.in.delivery.(transport.DeadLetterer) //nolint:errcheck // who calls this has seen that it is one
	return w.settle(ctx, func(ctx context.Context) error { return d.DeadLetter(ctx, a.Reason) })
}

// moveToError moves the message to the queue, or to where it can go instead.
func (w *wayOut) moveToError(ctx context.Context, queue string, native bool) error {
	wanted := recoverability.MoveToError{Queue: queue}
	err := w.toError(ctx, wanted)
	if other := w.in.live.recoverability.ErrorQueue; barred(err) && queue != other {
		w.warn(ctx, "an error queue refused a message: trying the configured one", err)
		if err = w.toError(ctx, recoverability.MoveToError{Queue: other}); err == nil {
			w.in.fallBack(FallbackQueue, wanted)
		}
	}
	if _, ok := w.in.delivery.(transport.DeadLetterer); !ok || !native || w.in.taken || !barred(err) {
		return err
	}
	w.warn(ctx, "the error queue refused a message: trying the broker's dead-letter queue", err)
	dead := recoverability.DeadLetter{Reason: fmt.Sprintf("error queue %q: %.500v", queue, err)}
	w.in.logAction(ctx, dead, w.rec.Failure)
	if err := w.handOver(ctx, dead); err != nil {
		return err
	}
	w.rec.Action = dead
	w.in.fallBack(FallbackDeadLetter, wanted)
	return nil
}

func (w *wayOut) toError(ctx context.Context, a recoverability.MoveToError) error {
	w.in.logAction(ctx, a, w.rec.Failure)
	received, full := w.in.original.Headers, w.rec.Fault
	err := w.to(ctx, a.Queue, 0, []rung{
		{headers: fault.ErrorHeaders(received, full)},
		{FallbackTrimmed, fault.ErrorHeaders(received, fault.Trim(full))},
		{FallbackMinimal, fault.ErrorHeaders(received, fault.Minimal(full))},
		{FallbackOriginal, fault.ErrorHeaders(received, header.Map{})},
	})
	if err == nil {
		w.rec.Action = a
	}
	return err
}

// rung is the headers of a copy, and what it means to have to take them.
type rung struct {
	fallback Fallback
	headers  header.Map
}

// to sends a copy with the first headers that there is room for.
func (w *wayOut) to(ctx context.Context, queue string, after time.Duration, rungs []rung) (err error) {
	for _, r := range rungs {
		op := w.in.copyTo(queue, r.headers, after)
		if err = tooLarge(op.Message, w.in.live.limits); err == nil {
			err = w.replace(ctx, op)
		}
		if err == nil {
			w.trimmed(ctx, queue, r.fallback)
			return nil
		}
		var large *transport.TooLargeError
		if !errors.As(err, &large) || large.What == "body" {
			return err
		}
	}
	return err
}

func (w *wayOut) trimmed(ctx context.Context, queue string, f Fallback) {
	if f == "" {
		return
	}
	w.in.log().WarnContext(ctx, "a queue has no room for all headers of a failed message: some are left out",
		slog.String("message", w.in.id), slog.String("queue", queue), slog.String("headers", string(f)))
	w.in.fallBack(f, w.rec.Action)
}

// tooLarge reports why a copy need not be tried. Its body is not judged here: the broker has had room for it once, and some drivers
// have more room for a copy than for a new message.
func tooLarge(m *transport.Message, limits transport.Limits) error {
	if size := m.Headers.Size(); limits.MaxHeaders > 0 && size > limits.MaxHeaders {
		return &transport.TooLargeError{What: "headers", Size: size, Max: limits.MaxHeaders}
	}
	return nil
}

// replace sends op in the place of the message. What was sent before leaves with it; before it,
// and once, where that is no unit. A refusal that may pass is put to the test.
func (w *wayOut) replace(ctx context.Context, op transport.Operation) error {
	if !w.in.unit() {
		if err := w.in.send(w.sent); err != nil {
			return &strandedError{err}
		}
		w.sent = nil
	}
	ops := append(slices.Clip(w.sent), op)
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for try := 1; ; try++ {
		err := w.of(w.in.finish(ctx, ops), len(w.sent))
		if try == settleTries || !barred(err) || final(err) || pause.Wait(w.in.live.settling.context()) != nil {
			return err
		}
	}
}

// strandedError is of something else than the copy: no other copy would fare better.
type strandedError struct{ error }

func (e *strandedError) Unwrap() error { return e.error }

// of is err where it is about operation i, or about none in particular.
func (w *wayOut) of(err error, i int) error {
	var refused *transport.DispatchError
	if err == nil || !errors.As(err, &refused) {
		return err
	}
	for _, op := range refused.Ops {
		if op.Index == i && w.in.session.tx == nil {
			return err
		}
	}
	return &strandedError{err}
}

// barred tells whether the broker has refused the copy, so that another way is to be tried.
func barred(err error) bool {
	var refused *transport.DispatchError
	var large *transport.TooLargeError
	var stranded *strandedError
	if errors.As(err, &stranded) || unanswered(err) {
		return false
	}
	return errors.As(err, &refused) || errors.As(err, &large)
}

// unanswered tells whether the broker has neither accepted nor refused what was asked of it, as far as is known.
func unanswered(err error) bool {
	var final *finalError
	return !errors.As(err, &final) &&
		slices.ContainsFunc([]error{
			transport.ErrOutcomeUnknown, transport.ErrUnreachable, transport.ErrClosed, context.DeadlineExceeded, context.Canceled,
		}, func(away error) bool { return errors.Is(err, away) })
}

// final tells whether a refusal will be the same the next time.
func final(err error) bool {
	return errors.Is(err, transport.ErrNoQueue) || errors.Is(err, transport.ErrTooLarge)
}

func (w *wayOut) warn(ctx context.Context, text string, err error) {
	w.in.log().ErrorContext(ctx, text, slog.String("message", w.in.id), slog.Any("error", err)) //nolint:sloglint // constants all
}
