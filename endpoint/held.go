package endpoint

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/held"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// decidedDelay is the delay of a copy of a held message in the endpoint's own queue.
const decidedDelay = 30 * time.Second

// lineError is the last refusal of an error queue for which other messages wait. The message was
// not sent.
type lineError struct{ errtree.Mark }

// canWait reports whether the message may wait for its error queue, without a slot, after its move
// has failed with err. Another error of the move than that of the copy, and a refusal of the copy
// for its content, do not end by waiting.
func (r *recovery) canWait(err error) bool {
	if r.move == nil || !r.move.isHeldable() {
		return false
	}
	if _, line := errors.AsType[*lineError](err); line {
		return true
	}
	_, stranded := errors.AsType[*copies.StrandedError](err)
	return (copies.Refused(err) || copies.Unanswered(err)) && !stranded && !copies.OfMessage(copies.ErrorOf(err, len(r.move.sent)))
}

// isHeldable reports whether the message may wait and can be moved later: a transaction cannot be
// kept open.
func (x *execution) isHeldable() bool {
	return x.mayWait && x.exclusive == nil && x.session.unit.Begun() == nil && !x.Over() && !x.CompletedFirst()
}

// beginHold holds the message whose move has failed with err, and reports it. It returns false if
// the message cannot wait, or if too many are held already.
func (r *recovery) beginHold(ctx context.Context, err error) (w waits, ok bool) {
	if !r.canWait(err) {
		return w, false
	}
	queue, size := r.move.wanted.Queue, int64(len(r.Original.Body)+r.Original.Headers.Size())
	enter := r.live.room.Enter
	if _, line := errors.AsType[*lineError](err); line {
		enter = r.live.room.Follow
	}
	place, begins := enter(queue, size, err)
	if place == nil {
		return w, false
	}
	r.move.until = r.Slot.Hold()
	if most := r.live.limits.MaxHold; r.move.until.IsZero() && most > 0 {
		r.move.until = time.Now().Add(most - r.Slot.Age())
	}
	r.move.again = true
	if begins {
		r.Log.ErrorContext(ctx, "an error queue accepts no messages: failed messages are held until it does",
			slog.String("queue", queue), slog.Any("error", err))
	}
	r.reportKept(ctx, err)
	return waits{r.move, place}, true
}

// endHold logs the end of the wait for an error queue; s is nil while other messages wait.
func (x *execution) endHold(ctx context.Context, s *held.State) {
	if s != nil {
		x.Log.InfoContext(ctx, "no failed message waits for an error queue any more", slog.String("queue", s.Queue),
			slog.Duration("after", time.Since(s.Since)), slog.Int("moved", s.Accepted))
	}
}

// EndsSoon implements [held.Message]: after three quarters of the time for which the message may be
// unsettled, or after half of a lease without a renewal, the broker is about to deliver the message
// again.
func (x *execution) EndsSoon() bool {
	return x.Slot.LeaseLate() || !x.until.IsZero() && time.Until(x.until) <= x.live.limits.MaxHold/4
}

// TryAgain implements [held.Message]: it moves the message once more.
func (x *execution) TryAgain(ctx context.Context) (err error) {
	defer panics.Catch(&err)
	place := x.live.notifier.Next(x.FailureKey())
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
	defer x.live.exits.Enter()()
	for _, exit := range x.exits() {
		if !x.live.exits.Answers(exit.Queue) {
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
			x.live.exits.NoAnswer(exit.Queue)
		}
	}
	x.Retry(ctx)
}

// exits returns the places for the copy, the best first.
func (x *execution) exits() (all []transport.Operation) {
	if queue := x.live.satellites.accepting(); queue != "" {
		all = append(all, transport.Operation{Queue: queue})
	}
	if most := x.live.limits.MaxDelay; most > 0 {
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

// moveDecided moves the message with the fault headers that it has. The policy and
// Config.OnFinalFailure were called before.
func (r *recovery) moveDecided(ctx context.Context, a *attempt, queue string) result {
	r.at, r.finalised = a.origin(), true
	m := *copies.Unpacked(r.Received.Message())
	var failed header.Map
	m.Headers, failed = fault.LeaveDecided(m.Headers)
	r.Original = &m
	rec := r.begin(a, r.Facts(&decidedError{failed.Get(header.ExceptionMessage), failed.Get(header.HoldfastFaultClass)}))
	rec.Failure.Queue = cmp.Or(r.live.names.Of(failed.Get(header.FailedQ)), r.Queue)
	rec.Action = recoverability.MoveToError{Queue: r.errorQueueOf(queue)}
	if rec.Fault = failed; failed.Get(header.FailedQ) == "" { // the copy had no room for the headers, or no endpoint has made it
		rec.Fault = r.faultHeaders(ctx, rec.Failure)
	}
	return r.end(ctx, rec, r.conclude(ctx, rec))
}

// errorQueueOf returns the error queue that a copy names. The sender of a message has no say in
// where the endpoint moves the message: other queues than the configured ones count only if a
// policy of the program chooses queues.
func (r *recovery) errorQueueOf(named string) string {
	l, queue := r.live, r.live.names.Of(named)
	if l.recoverability.Policy == nil && !slices.Contains(l.recoverability.ErrorQueues(), queue) {
		return l.recoverability.ErrorQueue
	}
	return queue
}

// decidedError is the failure of a message in an earlier delivery.
type decidedError struct{ text, class string }

func (e *decidedError) Error() string {
	return errtree.Cut(cmp.Or(e.text, "the message has failed before, and does not say why"), settle.MaxLogged)
}

// FaultClass returns the class of the fault in the error queue.
func (e *decidedError) FaultClass() string { return e.class }
