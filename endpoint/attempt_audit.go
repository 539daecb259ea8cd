package endpoint

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// processed returns ops and what the endpoint itself sends with a processed message: the notice to
// ServiceControl that the retry of a failed message succeeded, and the copy for the audit queue.
func (a *attempt) processed(ctx context.Context, ops []transport.Operation) []transport.Operation {
	acknowledged := a.acknowledged(ctx, ops)
	if a.e.cfg.AuditQueue == "" {
		return acknowledged
	}
	h := fault.AuditHeaders(a.original.Headers, 9)
	h.Set(header.ProcessingStarted, header.FormatTime(a.startedAt))
	h.Set(header.ProcessingEnded, header.FormatTime(time.Now()))
	h.Set(header.ProcessingEndpoint, a.e.host.Endpoint)
	h.Set(header.ProcessingMachine, a.e.host.Machine)
	h.Set(header.HostID, a.e.host.HostID)
	h.Set(header.HostDisplayName, a.e.host.DisplayName)
	if len(acknowledged) > len(ops) { // ServiceControl then sends no notice of its own
		h.Set(header.RetryAcknowledged, "True")
	}
	op := a.copyTo(a.e.cfg.AuditQueue, h, 0)
	op.TTL = a.e.cfg.AuditExpireAfter
	return slices.Concat(acknowledged, []transport.Operation{op})
}

// acknowledged returns ops and the notice to ServiceControl, where it expects one.
func (in *incoming) acknowledged(ctx context.Context, ops []transport.Operation) []transport.Operation {
	queue := in.acknowledgementQueue(ctx)
	if queue == "" {
		return ops
	}
	now := time.Now()
	m := &transport.Message{ID: uuid.New(now)}
	m.Headers.Set(header.MessageID, m.ID)
	m.Headers.Set(header.ControlMessage, "True")
	m.Headers.Set(header.RetrySuccessful, header.FormatTime(now))
	m.Headers.Set(header.RetryUniqueID, in.original.Headers.Get(header.RetryUniqueID))
	return append(slices.Clip(ops), transport.Operation{Message: m, Queue: queue})
}

// acknowledgementQueue returns the queue for the notice, which ServiceControl names in a message that it returns from
// the error queue; "" for none. A queue that is missing, or cannot be inspected, must not fail a message that
// was handled: ServiceControl then reads the success from the audit copy.
func (in *incoming) acknowledgementQueue(ctx context.Context) string {
	queue := in.original.Headers.Get(header.RetryAcknowledgement)
	if queue == "" || in.original.Headers.Get(header.RetryUniqueID) == "" {
		return ""
	}
	inspector, ok := in.live.conn.(transport.Inspector)
	if !ok {
		return queue
	}
	there := in.live.acks.exists(queue, func() error {
		_, err := inspector.Inspect(in.live.settling.context(), queue)
		if err != nil {
			in.logError(ctx, slog.LevelWarn, "the acknowledgement queue of ServiceControl cannot be inspected",
				err, slog.String("queue", queue))
		}
		return err
	})
	if !there {
		return ""
	}
	return queue
}

const (
	// ackQueueThere and ackQueueMissing are for how long the answer of a look is used.
	ackQueueThere   = time.Minute
	ackQueueMissing = 10 * time.Second
)

// ackQueue remembers whether the queue that ServiceControl named last exists, so that the broker is not asked for
// every message. The zero value knows no queue.
type ackQueue struct {
	mu    sync.Mutex // guards the rest; held during a look, so that there is one at a time
	name  string
	there bool
	until time.Time
}

// exists reports whether the queue exists: from memory, or by calling look.
func (q *ackQueue) exists(name string, look func() error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.name == name && time.Now().Before(q.until) {
		return q.there
	}
	q.name, q.there = name, look() == nil
	valid := ackQueueMissing
	if q.there {
		valid = ackQueueThere
	}
	q.until = time.Now().Add(valid)
	return q.there
}

// forget makes the next message look again. It is called after a failed send: the queue may be deleted.
func (q *ackQueue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Time{}
}
