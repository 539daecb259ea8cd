package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// carryOut does what was decided, or what can be done instead, and tells of it: rec.Action is then
// what was done. An error means that the message is unsettled.
func (in *incoming) carryOut(ctx context.Context, rec *pipeline.Recover) (err error) {
	defer catchPanic(&err)
	sent, _ := in.session.end()
	rec.Action = in.possible(ctx, rec.Action)
	out := wayOut{in: in, rec: rec, sent: sent}
	turn := in.takeTurn()
	tell := func() {}
	defer func() { in.tell(turn, tell) }()
	in.logAction(ctx, rec.Action, rec.Failure)
	switch a := rec.Action.(type) {
	case recoverability.Retry:
		err = out.settle(ctx, in.retry(rec.Fault.Get(header.ExceptionMessage)))
	case recoverability.Delay:
		err = out.delay(ctx, a)
	case recoverability.MoveToError:
		err = out.moveToError(ctx, a.Queue, true)
	case recoverability.DeadLetter:
		err = out.deadLetter(ctx, a)
	case recoverability.Discard:
		err = in.finish(ctx, in.acknowledged(ctx, sent))
	}
	if err != nil {
		return err
	}
	in.settled = true
	if _, again := rec.Action.(recoverability.Retry); in.alone != nil || !again && !in.gone {
		in.e.failures.Forget(in.failureKey())
	}
	if !in.gone {
		done, failure := rec.Action, rec.Failure
		tell = func() { in.done(ctx, done, failure) }
	}
	return nil
}

// retry is how the message is retried: with a note of the reason, as the fault headers have it, where the broker keeps
// one. An error may panic when it is asked for its text; the fault headers survive that.
func (in *incoming) retry(reason string) func(context.Context) error {
	d, ok := in.delivery.(transport.RetryReasoner)
	if !ok || reason == "" {
		return in.delivery.Retry
	}
	return func(ctx context.Context) error { return d.RetryBecause(ctx, reason) }
}

// possible is the action, or a move to the error queue where it cannot be carried out.
func (in *incoming) possible(ctx context.Context, action recoverability.Action) recoverability.Action {
	switch a := action.(type) {
	case recoverability.MoveToError:
		if a.Queue == "" {
			return in.toErrorQueue()
		}
	case recoverability.Delay:
		a.For = max(0, a.For)
		action = a
	}
	why := in.impossible(action)
	if why == "" {
		return action
	}
	in.log().WarnContext(ctx, "an action cannot be carried out: moving the message to the error queue",
		slog.String("message", in.id), slog.Any("action", action), slog.String("reason", why))
	in.fallBack(FallbackError, action)
	return in.toErrorQueue()
}

// toErrorQueue is what is done where nothing else can be.
func (in *incoming) toErrorQueue() recoverability.Action {
	return recoverability.MoveToError{Queue: in.live.recoverability.ErrorQueue}
}

// impossible is why the transport, the transaction mode or the quarantine cannot have the action; ""
// where they can.
func (in *incoming) impossible(action recoverability.Action) string {
	noRetries := in.alone.forbids(action)
	if noRetries == "" && in.taken {
		noRetries = "transaction mode None has no retries"
	}
	switch a := action.(type) {
	case recoverability.Retry:
		return noRetries
	case recoverability.Delay:
		switch most := in.live.limits.MaxDelay; {
		case noRetries != "":
			return noRetries
		case most == 0:
			return "the transport offers no delays"
		case a.For > most:
			return fmt.Sprintf("the delay is over the transport's %v", most)
		}
	case recoverability.MoveToError:
		if a.Queue == in.queue || a.Queue == in.e.cfg.Name+quarantineSuffix || in.live.receivesFrom(a.Queue) {
			return "the endpoint receives from that queue: the message would come back at once"
		}
	case recoverability.DeadLetter:
		if _, ok := in.delivery.(transport.DeadLetterer); !ok || in.taken {
			return "the transport has no dead-letter queue"
		}
	case recoverability.Discard:
	default:
		return fmt.Sprintf("%T is no action", action)
	}
	return ""
}

// copyTo is the message as it was received, to be sent to a queue. It says of which hand-out's message it is a copy, so that a driver can
// tell the same copy from the next, and carries the broker's properties, so that a driver can send them again.
func (in *incoming) copyTo(queue string, headers header.Map, after time.Duration) transport.Operation {
	headers.SetDefault(header.MessageID, in.id)
	return transport.Operation{
		Message: &transport.Message{
			ID: in.id, NativeID: in.original.NativeID, Headers: headers, Body: in.original.Body, Native: in.original.Native,
		},
		Queue: queue, After: after,
	}
}
