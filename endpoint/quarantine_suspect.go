package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// suspect reports whether the message is to be moved to quarantine instead of being handled. Where
// the broker does not count, that is one which was delivered before and neither failed nor lost its
// lease here.
func (in *incoming) suspect() bool {
	q, a := in.live.quarantine, in.Received.Attempt()
	if a.N < 2 || in.cleared || q.missing.Load() {
		return false
	}
	known, ok := in.e.failures.Known(in.FailureKey())
	if !a.Exact {
		return !ok
	}
	return a.N-known.Failed > in.live.recoverability.Quarantine.After
}

// quarantine moves a suspect there. If the quarantine is missing, it returns nil: the message is
// then handled like any other. A message whose copy the quarantine refuses moves to the error
// queue.
func (in *incoming) quarantine(ctx context.Context) outcome {
	err := in.enterQuarantine(ctx)
	switch {
	case err == nil:
	case errors.Is(err, transport.ErrNoQueue):
		in.live.quarantine.find(ctx, err)
		in.LogError(ctx, slog.LevelWarn, "a message cannot be quarantined and is handled like any other",
			err, slog.Int("attempt", in.Received.Attempt().N))
		in.cleared = true
		return nil
	case copies.OfMessage(err):
		return in.moveRefused(ctx, &copies.CopyError{Doing: fmt.Sprintf(
			"the process may crash over the message, which was delivered %d times, and it could not be moved to quarantine", in.Received.Attempt().N,
		), Err: err})
	default:
		in.Slot.Free()
		return back{in.keep(ctx, fmt.Errorf("move to quarantine: %w", err))}
	}
	return over{}
}

// enterQuarantine completes the message with a copy in quarantine.
func (in *incoming) enterQuarantine(ctx context.Context) error {
	q, n := in.live.quarantine, in.Received.Attempt().N
	headers := fault.QuarantineHeaders(in.Original.Headers, in.live.names.Address(in.Queue), n)
	place := in.live.notifier.Next(in.FailureKey())
	report := func() {}
	defer func() { in.report(place, report) }()
	if err := in.Complete(ctx, nil, []transport.Operation{in.CopyTo(q.queue, headers, 0)}); err != nil {
		return err
	}
	in.Slot.Free()
	if in.LostLease() {
		return nil
	}
	select {
	case q.moved <- struct{}{}:
	default: // there is a token
	}
	in.Log.WarnContext(ctx, "the process may crash over a message: it is moved to quarantine",
		slog.String("message", in.LogID()), slog.Int("attempt", n), slog.String("queue", q.queue))
	f := in.Facts(fmt.Errorf("delivered %d times: the process may crash over it", n))
	report = func() {
		in.live.notifier.Notify(ctx, recoverability.Notification{Kind: recoverability.Quarantined, To: q.queue, Failure: &f})
	}
	return nil
}

// exclusive is a message that was received from the quarantine.
type exclusive struct {
	in     *incoming
	before int  // deliveries in its own queue, before it was quarantined
	parked bool // delivered too often in quarantine: the process crashes over it
	stuck  bool // it could be neither settled nor moved
}

// leaveQuarantine is a guard. It removes the headers that the quarantine added: for handlers and
// copies the message is one of the queue that it came from.
func leaveQuarantine(_ context.Context, in *incoming) outcome {
	x, own, a := &exclusive{in: in}, *in.Original, in.Received.Attempt()
	var queue string
	own.Headers, queue, x.before = fault.LeaveQuarantine(own.Headers)
	in.Queue, in.Original = in.live.names.Of(cmp.Or(queue, in.Queue)), &own
	x.parked = a.Exact && a.N > in.live.recoverability.Quarantine.Crashes
	in.exclusive = x
	return nil
}

// crashLoop returns the error of a message that is parked.
func (x *exclusive) crashLoop() error {
	return recoverability.Unrecoverable(&recoverability.CrashLoopError{
		Queue: x.in.Queue, Attempts: x.before, Crashes: x.in.Received.Attempt().N - 1,
	})
}

// returnToOrigin moves a message that is stuck in quarantine back to its own queue, where its
// attempts begin anew, so that the others do not wait for it. One that is parked stays for the next
// visit.
func (x *exclusive) returnToOrigin(ctx context.Context) {
	x.stuck = true
	if !x.parked {
		again := x.in.CopyTo(x.in.Queue, x.in.Original.Headers.Clone(), 0)
		err := x.in.Complete(ctx, nil, []transport.Operation{again})
		if err == nil {
			return
		}
		x.in.LogError(ctx, slog.LevelWarn, "a message could not be moved back from quarantine", err)
	}
	x.in.Retry(ctx)
}

// forbids returns why an action cannot be carried out in quarantine; "" if it can. Retried at once,
// the message would seem to have crashed the process, and one that is parked would crash it again.
func (x *exclusive) forbids(action recoverability.Action) string {
	if x == nil {
		return ""
	}
	switch action.(type) {
	case recoverability.Retry:
		return "nothing is retried at once in quarantine"
	case recoverability.RetryInline:
		return "nothing is retried inline in quarantine, where all others wait"
	case recoverability.Delay:
		if x.parked {
			return "the process crashes over the message"
		}
	case recoverability.MoveToError, recoverability.DeadLetter, recoverability.Discard:
	}
	return ""
}
