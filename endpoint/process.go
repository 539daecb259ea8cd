package endpoint

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/transport"
)

// handle returns the function that the pump of the queue calls for each delivery.
func (l *live) handle(queue string) handleFunc {
	var arrivals *keylock.Arrivals
	if l.keys != nil {
		arrivals = l.keys.Arrivals()
	}
	return func(ctx context.Context, d transport.Delivery, slot *pump.Slot) {
		in := l.newIncoming(d, slot, queue)
		in.keys.Arrivals = arrivals
		in.process(ctx, &l.roads.ordinary)
	}
}

// handleExclusively processes a delivery from the quarantine. No other message is processed
// meanwhile.
func (l *live) handleExclusively(
	ctx context.Context, d transport.Delivery, slot *pump.Slot, stuck func(),
) {
	in := l.newIncoming(d, slot, l.names.Of(l.e.cfg.Name))
	defer func() { // also when a handler calls runtime.Goexit
		if in.exclusive != nil && in.exclusive.Stuck {
			stuck()
		}
	}()
	in.process(ctx, &l.roads.quarantine)
}

// process makes attempts at the message, as far as the guards of the road let it, until the message
// is settled, or left to the broker to deliver again.
func (in *incoming) process(ctx context.Context, r *road) {
	defer in.turn.Pass()
	defer in.giveUpKeys()
	if in.road = r; in.arrive(ctx, r.arrival) {
		in.repeat(ctx)
	}
}

// arrive asks the guards of arrival. It reports whether the message goes on. If not, the processing
// has ended.
func (in *incoming) arrive(ctx context.Context, guards []arrivalGuard) bool {
	for _, g := range guards {
		if out := g(ctx, in); out != nil {
			in.end(ctx, out)
			return false
		}
	}
	return true
}

// repeat makes attempts until the message needs no further one.
func (in *incoming) repeat(ctx context.Context) {
	for again := true; again; {
		if out := in.admit(ctx); out != nil {
			in.end(ctx, out)
			return
		}
		again = in.step(ctx, in.newAttempt())
	}
}

// admit asks the guards of admission.
func (in *incoming) admit(ctx context.Context) outcome {
	for _, g := range in.road.admission {
		if out := g(ctx, in); out != nil {
			return out
		}
	}
	return nil
}

// step makes one attempt, acts on its outcome, and reports whether another attempt follows. A
// handler that calls runtime.Goexit leaves nothing of this goroutine but its deferred calls: then
// processing continues in a deferred call.
func (in *incoming) step(ctx context.Context, a *attempt) bool {
	returned := false
	defer func() {
		if !returned && in.act(ctx, a, a.fail(ctx, panics.ErrGoexit)) {
			in.repeat(ctx)
		}
	}()
	out := a.run(ctx)
	returned = true
	return in.act(ctx, a, out)
}

// act does what the outcome of an attempt asks for. It reports whether another attempt follows.
func (in *incoming) act(ctx context.Context, a *attempt, out outcome) (next bool) {
	if f, ok := out.(failed); ok {
		out = in.recover(ctx, a, f.err)
	}
	if w, ok := out.(again); ok {
		if out = in.pause(ctx, w.after); out == nil {
			return true
		}
	}
	in.end(ctx, out)
	return false
}

// end ends the processing of the message with an outcome after which no attempt follows.
func (in *incoming) end(ctx context.Context, out outcome) {
	b, returns := out.(back)
	for returns {
		out = in.giveBack(ctx, b.by)
		b, returns = out.(back)
	}
	if _, ok := out.(done); ok {
		in.succeeded(ctx)
	}
}

// giveBack returns the message to its queue. The outcome is another way if the queue has refused
// the message's copy: stuck, which is the last.
func (in *incoming) giveBack(ctx context.Context, by way) outcome {
	switch by := by.(type) {
	case released:
		in.Release(ctx)
	case behind:
		in.Postpone(ctx, by.queue)
	case untouched:
		if in.exclusive == nil && !in.live.limits.FreeRelease && in.live.limits.MaxDelay > 0 {
			return in.copyLater(ctx, by.after)
		}
		in.Release(ctx)
	case throttled:
		if in.live.limits.MaxDelay > 0 {
			return in.copyLater(ctx, in.turn.Deferral(time.Now()))
		}
		in.turn.Remember(&in.Delivery)
		in.Release(ctx)
	case stuck:
		in.newRecovery().Requeue(ctx, by.Stuck)
	}
	return over{}
}

// copyLater completes the message with a copy that is due after a while, with no retry used up. If
// the copy is refused for its content, the message moves to the error queue.
func (in *incoming) copyLater(ctx context.Context, after time.Duration) outcome {
	after = min(after, in.live.limits.MaxDelay)
	later := in.CopyTo(in.Queue, in.turn.Headers(&in.Delivery), after)
	err := in.Complete(ctx, nil, []transport.Operation{later})
	switch {
	case err == nil:
	case copies.OfMessage(err):
		return in.moveRefused(ctx, &copies.CopyError{Doing: "the message could not be postponed", Err: err})
	default:
		return in.keep(ctx, err)
	}
	if !in.LostLease() {
		in.e.failures.Forget(in.FailureKey()) // the copy has their number
	}
	in.Log.DebugContext(ctx, "a message is postponed, without a retry used up",
		slog.String("message", in.LogID()), slog.Duration("after", after))
	return over{}
}

// succeeded records that the handlers succeeded and the message is settled.
func (in *incoming) succeeded(ctx context.Context) {
	n := in.Received.Attempt().N
	if in.exclusive == nil {
		in.live.slow.Succeeded(n)
	}
	if in.exclusive != nil || (n > 1 || in.Inline > 0) && !in.LostLease() || in.turn.IsRemembered() {
		in.ForgetFailures()
	}
	in.turn.Succeeded(ctx, &in.Delivery)
}
