package audit

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Refusals moves messages of the endpoint itself, such as audit copies, to the error queue, if
// their queue has refused them.
type Refusals struct {
	ErrorQueue string
	Host       fault.Host
	Instance   string
	Config     recoverability.Config
	Names      *names.Queues
	Notifier   *notify.Notifier
	Log        *slog.Logger
}

// Refused is a message that its queue refused. The copies for the error queue name the queue as the
// place of the failure, so that a return brings the message to the queue.
type Refused struct {
	of      *Refusals
	message *transport.Message
	failure recoverability.Failure
	part    string // of the endpoint that sent the message
}

// Of returns the refusal of a message by a queue. part is the part of the endpoint that sent the
// message.
func (r *Refusals) Of(m *transport.Message, queue string, err error, part string) *Refused {
	now := time.Now()
	return &Refused{of: r, message: m, part: part, failure: recoverability.Failure{
		Err: err, MessageID: m.ID, Type: settle.FirstType(m.Headers), Queue: queue, Headers: m.Headers, Body: m.Body,
		FirstFailure: now, Now: now, Instance: r.Instance, Config: r.Config,
	}}
}

// ToErrorQueue calls send with one copy for the error queue after the other, until the queue
// accepts a copy or refuses all of them.
func (c *Refused) ToErrorQueue(send func(transport.Operation) error) (err error) {
	full := fault.Headers(c.failure, c.of.Host, fault.Frame{Func: "github.com/holdfast-go/holdfast/endpoint." + c.part})
	full.Set(header.FailedQ, c.of.Names.Address(c.failure.Queue))
	for _, m := range copies.ForErrorQueue(c.message, full) {
		if err = send(transport.Operation{Message: m, Queue: c.of.ErrorQueue}); !copies.OfMessage(err) {
			return err
		}
	}
	return err
}

// Report logs and notifies that the error queue has a copy.
func (c *Refused) Report(ctx context.Context, text string) {
	f, queue := c.failure, c.of.ErrorQueue
	c.of.Log.ErrorContext(ctx, text, //nolint:sloglint // the texts are constants of the callers
		slog.String("message", errtree.Cut(f.MessageID, settle.MaxLogged)),
		slog.String("type", errtree.Cut(f.Type, settle.MaxLogged)),
		slog.String("queue", f.Queue), slog.String("error_queue", queue), slog.Any("error", f.Err))
	c.of.Notifier.Notify(ctx, recoverability.Notification{
		Kind: recoverability.MovedToError, Action: recoverability.MoveToError{Queue: queue}, Failure: &f, To: queue,
	})
}
