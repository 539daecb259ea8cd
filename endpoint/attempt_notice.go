package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// notice returns the notice to ServiceControl that a returned message has been processed, or nil if
// ServiceControl expects no notice. ServiceControl takes each notice for a success. The outcome, if
// any, says why the message was not handled.
func (in *incoming) notice(ctx context.Context, outcome string) *transport.Operation {
	queue := in.noticeQueue(ctx)
	if queue == "" {
		return nil
	}
	now := time.Now()
	m := &transport.Message{ID: uuid.New(now)}
	m.Headers.Set(header.MessageID, m.ID)
	m.Headers.Set(header.ControlMessage, "True")
	m.Headers.Set(header.RetrySuccessful, header.FormatTime(now))
	m.Headers.Set(header.RetryUniqueID, in.Original.Headers.Get(header.RetryUniqueID))
	if outcome != "" {
		m.Headers.Set(header.HoldfastReturnOutcome, outcome)
	}
	return &transport.Operation{Message: m, Queue: queue}
}

// noticeQueue returns the queue for the notice, which ServiceControl names in a message that it
// returns from the error queue; "" for none, and for one that is missing. That must not fail a
// message that was handled: ServiceControl then reads the success from the audit copy.
func (in *incoming) noticeQueue(ctx context.Context) string {
	queue := in.Original.Headers.Get(header.RetryAcknowledgement)
	if queue == "" || in.Original.Headers.Get(header.RetryUniqueID) == "" {
		return ""
	}
	inspector, ok := in.live.conn.(transport.Inspector)
	look := func() error {
		if !ok {
			return nil
		}
		_, err := inspector.Inspect(in.live.settler.Context(), queue)
		if err != nil {
			in.LogError(ctx, slog.LevelWarn, "the acknowledgement queue of ServiceControl cannot be inspected",
				err, slog.String("queue", queue))
		}
		return err
	}
	if !in.live.acks.exists(queue, look) {
		return ""
	}
	return queue
}

// noticeFailed records that the queue of a notice is missing.
func (in *incoming) noticeFailed(ctx context.Context, notice *transport.Operation, err error) {
	in.live.acks.missing(notice.Queue)
	in.LogError(ctx, slog.LevelWarn, "the acknowledgement queue of ServiceControl is missing: "+
		"it learns from the audit copy that a message was processed", err, slog.String("queue", notice.Queue))
}

// incompleteError is the error of a transaction that could not be completed because the queue of
// the notice is missing, or because the audit copy was refused. The next attempt sends no notice,
// or another copy.
type incompleteError struct{ errtree.Mark }

// noQueueFor reports whether a queue is missing for operation i of a dispatch that failed with err.
func noQueueFor(err error, i int) bool {
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	return ok && slices.ContainsFunc(refusal.Ops, func(op transport.OpError) bool {
		return op.Index == i && errors.Is(op.Err, transport.ErrNoQueue)
	})
}

const (
	// ackQueueThere and ackQueueMissing are for how long the answer of a look is used.
	ackQueueThere   = time.Minute
	ackQueueMissing = 10 * time.Second
)

// ackQueue remembers whether the queue that ServiceControl named last is missing, so that the
// broker is not asked for every message. The zero value knows no queue.
type ackQueue struct {
	mu    sync.Mutex // guards the rest; held during a look, so that there is one at a time
	name  string
	there bool // or unknown
	until time.Time
}

// exists reports whether the queue exists or may exist: from memory, or by calling look. Only
// [transport.ErrNoQueue] says that there is none: the endpoint may have the right to send to a
// queue, and not to inspect it.
func (q *ackQueue) exists(name string, look func() error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.name == name && time.Now().Before(q.until) {
		return q.there
	}
	err := look()
	valid := ackQueueMissing // also where the broker did not answer
	if err == nil {
		valid = ackQueueThere
	}
	q.name, q.there, q.until = name, !errors.Is(err, transport.ErrNoQueue), time.Now().Add(valid)
	return q.there
}

// forget makes the next message look again. It is called after a failed send: the queue may be
// deleted.
func (q *ackQueue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Time{}
}

// missing records that a queue that seemed to exist does not.
func (q *ackQueue) missing(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.name, q.there, q.until = name, false, time.Now().Add(ackQueueMissing)
}
