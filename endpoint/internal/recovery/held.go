package recovery

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

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
