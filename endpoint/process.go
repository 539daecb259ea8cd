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
		in.keyed.arrivals = arrivals
		if l.translate != nil {
			l.slow.Received(d.Attempt().N) // before a function that may hang
		}
		in.translate()
		if arrivals != nil && !in.hasKeys() {
			arrivals.Pass(slot)
		}
		if in.relayed(ctx) {
			in.giveUpKeys()
			return
		}
		if in.mayWait = true; in.decided(ctx) {
			in.giveUpKeys()
			return
		}
		in.throttling = in.newThrottling()
		in.process(ctx)
	}
}

// handleExclusively processes a delivery from the quarantine. No other message is processed
// meanwhile.
func (l *live) handleExclusively(ctx context.Context, d transport.Delivery, slot *pump.Slot, stuck func()) {
	in := l.newIncoming(d, slot, l.names.of(l.e.cfg.Name))
	in.translate()
	if in.relayed(ctx) || in.decided(ctx) {
		return
	}
	in.exclusive = in.leaveQuarantine()
	defer func() { // also when a handler calls runtime.Goexit
		if in.exclusive.stuck {
			stuck()
		}
	}()
	in.process(ctx)
}

// process makes attempts at the message until it is settled, or left to the broker to deliver
// again.
func (in *incoming) process(ctx context.Context) {
	defer in.throttling.pass()
	defer in.giveUpKeys()
	for again := true; again; {
		again = in.step(ctx, in.newAttempt())
	}
}

// step makes one attempt and acts on its outcome. It reports whether another attempt follows. A
// handler that calls runtime.Goexit leaves nothing of this goroutine but its deferred calls: then
// processing continues in one of them.
func (in *incoming) step(ctx context.Context, a *attempt) bool {
	returned := false
	defer func() {
		if !returned && in.act(ctx, a, a.fail(ctx, panics.ErrGoexit)) {
			in.process(ctx)
		}
	}()
	out := a.run(ctx)
	returned = true
	return in.act(ctx, a, out)
}

// act does what the outcome of an attempt asks for. It reports whether another attempt follows.
func (in *incoming) act(ctx context.Context, a *attempt, out outcome) (again bool) {
	switch out := out.(type) {
	case completed:
		in.succeeded(ctx)
	case leaseLost:
	case suspected:
		return !in.quarantine(ctx)
	case conflicted:
		return in.pauseAfterConflict(ctx, out.err)
	case throttled:
		if out.retry {
			return true
		}
		in.throttling.postpone(ctx)
	case busy:
		in.settlement.postpone(ctx, out.queue)
	case outstayed:
		in.putBack(ctx, outstayedPause)
	case contended:
		in.putBackContended(ctx, out.err)
	case unstored:
		return in.awaitOutbox(ctx, a, out.err)
	case impeded:
		return in.awaitRoom(ctx, a, out.err)
	case interrupted:
		in.settlement.release(ctx)
	case failed:
		return in.recover(ctx, a, out.err)
	}
	return false
}

// recover has recoverability decide about a message that failed. One that it can neither settle nor
// move returns to its queue after a pause. It reports whether another attempt follows.
func (in *incoming) recover(ctx context.Context, a *attempt, err error) (again bool) {
	if in.settlement.over() {
		in.logError(ctx, slog.LevelError, errAfterSettled, err)
		return false
	}
	res := newRecovery(in).run(ctx, a, err)
	if retry, ok := res.(retrying); ok {
		return in.awaitRetry(ctx, a, retry.after)
	}
	in.settleBy(ctx, res)
	return false
}

const errAfterSettled = "a behavior failed after its message was settled"

// succeeded records that the handlers succeeded and the message is settled.
func (in *incoming) succeeded(ctx context.Context) {
	n := in.delivery.Attempt().N
	if in.exclusive == nil {
		in.live.slow.Succeeded(n)
	}
	remembered := in.throttling.limit != nil && !in.throttling.deferrable()
	if in.exclusive != nil || (n > 1 || in.inline > 0) && !in.settlement.lostLease() || remembered {
		in.forgetFailures()
	}
	in.throttling.succeeded(ctx)
}
