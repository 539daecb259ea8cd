package endpoint

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// processed is ops and what the endpoint itself sends when a message has been processed.
func (in *incoming) processed(ops []transport.Operation) []transport.Operation {
	return in.withAudit(in.withAcknowledgement(ops))
}

// withAcknowledgement is ops and, for a message that ServiceControl has returned from its error
// queue, the control message that tells it of the success.
func (in *incoming) withAcknowledgement(ops []transport.Operation) []transport.Operation {
	queue, id := in.acknowledgement()
	if queue == "" {
		return ops
	}
	now := time.Now()
	m := &transport.Message{ID: newID(now)}
	m.Headers.Set(header.MessageID, m.ID)
	m.Headers.Set(header.ControlMessage, "True")
	m.Headers.Set(header.RetrySuccessful, header.FormatTime(now))
	m.Headers.Set(header.RetryUniqueID, id)
	return append(slices.Clip(ops), transport.Operation{Message: m, Queue: queue})
}

// acknowledgement is where the success is to be told and of which retry; "" is nowhere.
func (in *incoming) acknowledgement() (queue, id string) {
	queue, id = in.original.Headers.Get(header.RetryAcknowledgement), in.original.Headers.Get(header.RetryUniqueID)
	if id == "" {
		return "", ""
	}
	return queue, id
}
