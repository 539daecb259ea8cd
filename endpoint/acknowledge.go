package endpoint

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// processed is ops and what the endpoint itself sends when a message has been processed: the word
// to ServiceControl that the retry of a failed message has worked, and the copy for the audit.
func (in *incoming) processed(ctx context.Context, ops []transport.Operation) []transport.Operation {
	queue := in.acknowledgementQueue(ctx)
	if queue != "" {
		ops = append(slices.Clip(ops), in.acknowledgement(queue))
	}
	return in.withAudit(ops, queue != "")
}

// acknowledgementQueue is where ServiceControl, which has returned the message from its error queue,
// wants to be told; "" is nowhere. A queue that is not there, or not to be looked at, must not fail a
// message that was handled: ServiceControl then learns of it by the audit copy.
func (in *incoming) acknowledgementQueue(ctx context.Context) string {
	queue := in.original.Headers.Get(header.RetryAcknowledgement)
	if queue == "" || in.original.Headers.Get(header.RetryUniqueID) == "" {
		return ""
	}
	inspector, ok := in.live.conn.(transport.Inspector)
	if !ok {
		return queue
	}
	if _, err := inspector.Inspect(in.live.settling.context(), queue); err != nil {
		in.log().WarnContext(ctx, "the retry of a message has worked, but the queue to tell ServiceControl in cannot be looked at",
			slog.String("message", in.id), slog.String("queue", queue), slog.Any("error", err))
		return ""
	}
	return queue
}

func (in *incoming) acknowledgement(queue string) transport.Operation {
	now := time.Now()
	m := &transport.Message{ID: newID(now)}
	m.Headers.Set(header.MessageID, m.ID)
	m.Headers.Set(header.ControlMessage, "True")
	m.Headers.Set(header.RetrySuccessful, header.FormatTime(now))
	m.Headers.Set(header.RetryUniqueID, in.original.Headers.Get(header.RetryUniqueID))
	return transport.Operation{Message: m, Queue: queue}
}
