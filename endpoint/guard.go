package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// guarded is the handling of a message that is alone.
type guarded struct {
	before int  // hand-outs in its queue, before it was quarantined
	parked bool // handed out too often in quarantine
	stuck  bool // it could not be dealt with
}

// guard keeps a message from its handlers that may be what ends the process: done means that it
// is not to be handled. An error is a failure of the message.
func (in *incoming) guard(ctx context.Context) (done bool, err error) {
	if in.alone == nil {
		in.live.slow.Received(in.receive.Attempt.N)
		return in.suspect() && in.quarantine(ctx), nil
	}
	if in.alone.parked {
		return true, in.crashLoop()
	}
	return false, nil
}

// suspect tells whether the message is to be moved to quarantine instead of being handled. Where
// the broker does not count, that is one which was handed out before and neither failed nor lost its lease here.
func (in *incoming) suspect() bool {
	q := in.live.quarantine
	if q == nil || q.missing.Load() {
		return false
	}
	a := in.receive.Attempt
	if !a.Exact {
		return a.N > 1 && !in.e.failures.Has(in.failureKey())
	}
	limits := in.live.recoverability.Quarantine
	return limits.Suspect(a.N) && limits.Suspect(a.N-in.e.failures.Failed(in.failureKey()))
}

// quarantine moves the message there unhandled. It is false where the queue does not take it: the
// message is then handled like any other.
func (in *incoming) quarantine(ctx context.Context) bool {
	q, n := in.live.quarantine, in.receive.Attempt.N
	headers := fault.QuarantineHeaders(in.original.Headers, in.queue, n)
	turn := in.takeTurn()
	tell := func() {}
	defer func() { in.tell(turn, tell) }()
	err := in.finish(ctx, []transport.Operation{in.copyTo(q.queue, headers, 0)})
	var large *transport.TooLargeError
	switch {
	case err == nil:
	case errors.Is(err, transport.ErrNoQueue), errors.As(err, &large):
		q.find(ctx, err)
		in.log().WarnContext(ctx, "a message cannot be quarantined and is handled like any other",
			slog.String("message", in.id), slog.Int("attempt", n), slog.Any("error", err))
		return false
	default:
		in.slot.Free()
		in.hold(ctx, fmt.Errorf("move to quarantine: %w", err))
		return true
	}
	in.slot.Free()
	if in.gone {
		return true
	}
	q.add()
	in.log().WarnContext(ctx, "a message may be what ends the process: it is quarantined, to be handled alone",
		slog.String("message", in.id), slog.Int("attempt", n), slog.String("queue", q.queue))
	f := in.facts(in.suspicion())
	moved := Notification{Kind: Quarantined, To: q.queue, Failure: &f}
	tell = func() { in.e.notify(ctx, moved) }
	return true
}

func (in *incoming) suspicion() error {
	return fmt.Errorf("handed out %d times: it may be what ends the process", in.receive.Attempt.N)
}

// alone is an attempt at a message in quarantine.
func (e *Endpoint) alone(live *live, d transport.Delivery, slot *pump.Slot) *incoming {
	in := &incoming{e: e, live: live, delivery: d, slot: slot, queue: e.cfg.Name, alone: &guarded{}}
	in.prepare()
	return in
}

// unmark takes away what was added to the message for the quarantine: to handlers and copies it is
// a message of the queue that it came from.
func (in *incoming) unmark(m *transport.Message) *transport.Message {
	own := *m
	var queue string
	own.Headers, queue, in.alone.before = fault.LeaveQuarantine(m.Headers)
	if queue != "" {
		in.queue = queue
	}
	a := in.delivery.Attempt()
	in.alone.parked = a.Exact && in.live.recoverability.Quarantine.Parked(a.N)
	return &own
}

// crashLoop is why the message is parked.
func (in *incoming) crashLoop() error {
	return recoverability.Unrecoverable(&recoverability.CrashLoopError{
		Queue: in.queue, Attempts: in.alone.before, Crashes: in.delivery.Attempt().N - 1,
	})
}

// immediate counts the failures of this cycle for a message in quarantine: those that it had before
// count, so that it is not retried at once there.
func (in *incoming) immediate() int {
	c := in.live.recoverability
	return max(in.alone.before-1+in.receive.Attempt.N, c.Immediate+1, c.Quarantine.After)
}

// goBack deals with a message in quarantine that could not be dealt with, without having the others
// wait for it. It begins anew in its own queue; one that is parked stays here for the next look.
func (in *incoming) goBack(ctx context.Context, cause error) {
	in.alone.stuck = true
	in.log().ErrorContext(ctx, "a failed message could not be dealt with: it leaves quarantine, or waits there if it is parked",
		slog.String("message", in.id), slog.Bool("parked", in.alone.parked), slog.Any("error", cause))
	if !in.alone.parked {
		err := in.completeWith(ctx, []transport.Operation{in.copyTo(in.queue, in.original.Headers.Clone(), 0)})
		if err == nil {
			return
		}
		in.log().WarnContext(ctx, "a message could not be moved back from quarantine", slog.String("message", in.id), slog.Any("error", err))
	}
	if err := in.settle(ctx, in.delivery.Retry); err != nil {
		in.log().WarnContext(ctx, "a message could not be returned: the broker will do so", slog.String("message", in.id), slog.Any("error", err))
	}
}

// forbids is why an action cannot be carried out in quarantine: retried at once, the message would
// seem to have ended the process, and one that is parked would end it again.
func (g *guarded) forbids(action recoverability.Action) string {
	if g == nil {
		return ""
	}
	switch action.(type) {
	case recoverability.Retry:
		return "nothing is retried at once in quarantine"
	case recoverability.Delay:
		if g.parked {
			return "the message ends the process"
		}
	}
	return ""
}
