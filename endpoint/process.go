package endpoint

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/endpoint/internal/keylock"
	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
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
		if in.exclusive != nil && in.exclusive.stuck {
			stuck()
		}
	}()
	in.process(ctx, &l.roads.quarantine)
}

// process makes attempts at the message, as far as the guards of the road let it, until the message
// is settled, or left to the broker to deliver again.
func (in *incoming) process(ctx context.Context, r *road) {
	defer in.throttling.pass()
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

// step makes one attempt and acts on its outcome. It reports whether another attempt follows. A
// handler that calls runtime.Goexit leaves nothing of this goroutine but its deferred calls: then
// processing continues in one of them.
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

// recover has recoverability decide about a message that failed.
func (in *incoming) recover(ctx context.Context, a *attempt, err error) outcome {
	if in.Over() {
		in.LogError(ctx, slog.LevelError, errAfterSettled, err)
		return over{}
	}
	return in.recovered(ctx, newRecovery(in).run(ctx, a, err))
}

const errAfterSettled = "a behavior failed after its message was settled"

// recovered returns the outcome of a message after its recovery.
func (in *incoming) recovered(ctx context.Context, res result) outcome {
	switch res := res.(type) {
	case retrying:
		in.inline++
		in.FailureCounted = false
		return again{&wait{after: res.after}}
	case waits:
		in.hold(ctx, res)
	case stuck:
		return back{res}
	case settled:
	}
	return over{}
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
		if in.exclusive == nil && !in.live.limits.FreeRelease && in.throttling.deferrable() {
			return in.throttling.copyFor(ctx, by.after)
		}
		in.Release(ctx)
	case throttled:
		return in.throttling.postpone(ctx)
	case stuck:
		in.requeue(ctx, by)
	}
	return over{}
}

// succeeded records that the handlers succeeded and the message is settled.
func (in *incoming) succeeded(ctx context.Context) {
	n := in.Received.Attempt().N
	if in.exclusive == nil {
		in.live.slow.Succeeded(n)
	}
	remembered := in.throttling.limit != nil && !in.throttling.deferrable()
	if in.exclusive != nil || (n > 1 || in.inline > 0) && !in.LostLease() || remembered {
		in.ForgetFailures()
	}
	in.throttling.succeeded(ctx)
}
