package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// refusedCopy is a message of the endpoint itself, such as an audit copy, that its queue refused.
// Its copies for the error queue name that queue as the one in which the message failed, so that a
// return brings the message there.
type refusedCopy struct {
	live    *live
	message *transport.Message
	failure recoverability.Failure
	part    string // of the endpoint that sent the message
}

// refusedCopyOf returns the refusal of a message by a queue.
func (l *live) refusedCopyOf(m *transport.Message, queue string, err error, part string) *refusedCopy {
	now := time.Now()
	return &refusedCopy{live: l, message: m, part: part, failure: recoverability.Failure{
		Err: err, MessageID: m.ID, Type: firstType(m.Headers), Queue: queue, Headers: m.Headers, Body: m.Body,
		FirstFailure: now, Now: now, Instance: l.e.cfg.Instance, Config: l.recoverability,
	}}
}

// toErrorQueue calls send with one copy for the error queue after the other, until the queue
// accepts one or refuses all.
func (c *refusedCopy) toErrorQueue(send func(transport.Operation) error) (err error) {
	full := fault.Headers(c.failure, c.live.e.host, fault.Frame{Func: "github.com/holdfast-go/holdfast/endpoint." + c.part})
	full.Set(header.FailedQ, c.live.names.address(c.failure.Queue))
	for _, m := range copies.ForErrorQueue(c.message, full) {
		if err = send(transport.Operation{Message: m, Queue: c.queue()}); !copies.OfMessage(err) {
			return err
		}
	}
	return err
}

func (c *refusedCopy) queue() string { return c.live.recoverability.ErrorQueue }

// report logs and notifies that the error queue has a copy.
func (c *refusedCopy) report(ctx context.Context, text string) {
	f := c.failure
	c.live.e.cfg.Logger.ErrorContext(ctx, text, //nolint:sloglint // the texts are constants of the callers
		slog.String("message", errtree.Cut(f.MessageID, settle.MaxLogged)), slog.String("type", errtree.Cut(f.Type, settle.MaxLogged)),
		slog.String("queue", f.Queue), slog.String("error_queue", c.queue()), slog.Any("error", f.Err))
	c.live.notifier.Notify(ctx, recoverability.Notification{
		Kind: recoverability.MovedToError, Action: recoverability.MoveToError{Queue: c.queue()}, Failure: &f, To: c.queue(),
	})
}

// copyError is the failure of a message one of whose copies was refused because of its content.
type copyError struct {
	doing string
	err   error
}

func (e *copyError) Error() string { return fmt.Sprintf("%s: %v", e.doing, copies.Single(e.err)) }
func (e *copyError) Unwrap() error { return e.err }

// FaultClass returns the class of the fault in the error queue.
func (e *copyError) FaultClass() string { return "undeliverable" }

// moveRefused moves a message to the error queue, because a copy of it was refused for its content.
// If the error queue refuses the message too, the message waits for the queue, or is requeued.
func (in *incoming) moveRefused(ctx context.Context, failure *copyError) outcome {
	in.LogError(ctx, slog.LevelError, "a copy of a message was refused: moving the message to the error queue", failure)
	in.Slot.Free()
	r, rec := in.newAttempt().burial(ctx, in.Queue, failure)
	return in.recovered(ctx, r.end(ctx, rec, r.conclude(ctx, rec)))
}
