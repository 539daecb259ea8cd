package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/transport"
)

// keeps reports whether an operation that failed with err stays in the outbox. One that the broker
// refuses moves to the error queue, so that it holds up no other.
func (r *relay) keeps(ctx context.Context, op *transport.Operation, own *owner, err error, yield func()) bool {
	missing := errors.Is(err, transport.ErrNoQueue)
	if missing { // further messages for it fail before their commit
		r.outbox.destinations.expect(op.Queue, 0)
	}
	final := copies.Permanent(err)
	if own.waits = forBroker; copies.Unanswered(err) {
		if r.book().Unwell(destinationOf(op)) {
			own.waits = forDestination
		}
		return true
	}
	if r.mayBeFull(op, err) {
		now := r.outbox.now()
		if own.refused.IsZero() {
			own.refused, own.outdated = now, true
		}
		if own.waits = forDestination; now.Sub(own.refused) < r.live.e.cfg.OutboxRefusedFor {
			return true
		}
		final = true
	}
	if own.tries++; !final && own.tries < settle.Tries {
		return true
	}
	if op.Message.Headers.Get(header.ControlMessage) != "" {
		r.live.e.cfg.Logger.WarnContext(ctx, "a notice to ServiceControl was refused and is discarded: the audit copy reports the success",
			slog.String("queue", op.Queue), slog.Any("error", err))
		return false
	}
	if moved := r.toErrorQueue(ctx, op, err, yield); moved != nil {
		if !copies.Unanswered(moved) {
			r.refusedRows.add(op, moved)
		}
		if !copies.Unanswered(moved) || r.book().Unwell(r.live.recoverability.ErrorQueue) {
			own.waits = forErrorQueue
		}
		if errors.Is(moved, errWaits) {
			return true
		}
		r.live.e.cfg.Logger.ErrorContext(ctx, "the broker and the error queue refused a message of the outbox: it stays there",
			slog.String("queue", op.Queue), slog.Any("error", errors.Join(err, moved)))
		return true
	}
	r.refused.Add(1)
	return false
}

// refusedRows are the messages of the outbox that their queue and the error queue have refused. A
// message that another instance sends is forgotten after a while.
type refusedRows struct {
	count atomic.Int32 // of ids

	mu  sync.Mutex // guards the rest
	ids map[refusedID]time.Time
	err error // the last refusal of the error queue
}

// refusedID is the id of a message with its destination: a program may give messages for different
// queues one id.
type refusedID struct{ destination, message string }

func refusedIDOf(op *transport.Operation) refusedID {
	return refusedID{destinationOf(op), op.Message.ID}
}

// maxRefusedRows bounds the ids. Further refused messages are not counted.
const maxRefusedRows = 1000

// add adds the message of an operation that the error queue has refused with err.
func (r *refusedRows) add(op *transport.Operation, err error) {
	id := refusedIDOf(op)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids == nil {
		r.ids = map[refusedID]time.Time{}
	}
	r.err = err
	if _, known := r.ids[id]; known || len(r.ids) < maxRefusedRows {
		r.ids[id] = time.Now()
	}
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

// remove removes the message of an operation that is no longer in the outbox.
func (r *refusedRows) remove(op *transport.Operation) {
	if r.count.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ids, refusedIDOf(op))
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
}

func (r *refusedRows) removeAll(ops []transport.Operation) {
	for i := range ops {
		r.remove(&ops[i])
	}
}

// refusal returns the last refusal while messages wait because of refusals. Each is tried again
// after queuesRefuse.
func (r *refusedRows) refusal() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.ids, func(_ refusedID, refused time.Time) bool { return time.Since(refused) > 2*queuesRefuse })
	r.count.Store(int32(len(r.ids))) //nolint:gosec // at most maxRefusedRows
	if len(r.ids) == 0 {
		return nil
	}
	return r.err
}

// mayBeFull reports whether the destination of an operation that failed with err is full: then the
// message waits for it. Audit copies and notices to ServiceControl do not wait.
func (r *relay) mayBeFull(op *transport.Operation, err error) bool {
	return errors.Is(err, transport.ErrFull) && !copies.Unanswered(err) && r.live.e.cfg.OutboxRefusedFor > 0 &&
		op.Message.Headers.Get(header.ControlMessage) == "" && !r.isAudit([]transport.Operation{*op})
}

// takeRefused removes the time of the first refusal from a stored message, and returns it; zero if
// there is none.
func takeRefused(m *transport.Message) time.Time {
	text := m.Headers.Get(header.HoldfastOutboxRefused)
	if text == "" {
		return time.Time{}
	}
	m.Headers.Del(header.HoldfastOutboxRefused)
	refused, err := header.ParseTime(text)
	if err != nil {
		return time.Time{} // no relay has written it
	}
	return refused
}

// withRefused returns an operation whose message has the time of its first refusal, to be stored.
func withRefused(op transport.Operation, refused time.Time) transport.Operation {
	if refused.IsZero() {
		return op
	}
	m := *op.Message
	m.Headers = m.Headers.Clone()
	m.Headers.Set(header.HoldfastOutboxRefused, header.FormatTime(refused))
	op.Message = &m
	return op
}

// toErrorQueue moves the message of an operation that failed with cause to the error queue. It
// failed in the queue that it is for, so that a return brings it there.
func (r *relay) toErrorQueue(ctx context.Context, op *transport.Operation, cause error, yield func()) error {
	l := r.live
	destination := op.Queue
	if destination == "" { // a published message
		destination = l.names.Of(l.e.cfg.Name)
	}
	refused := l.auditor.Refusals.Of(op.Message, destination, &unsentError{op.Queue, cause}, "outbox")
	err := refused.ToErrorQueue(func(moved transport.Operation) error {
		return copies.Single(r.sendAlone(ctx, moved, yield))
	})
	if err != nil {
		return fmt.Errorf("error queue %q: %w", l.auditor.Refusals.ErrorQueue, err)
	}
	refused.Report(ctx, "a message of the outbox was refused and moved to the error queue")
	return nil
}

// unsentError is the failure of a message that the broker refused after it was stored.
type unsentError struct {
	queue string
	err   error
}

func (e *unsentError) Error() string {
	if e.queue == "" {
		return fmt.Sprintf("the message was stored in the outbox, and could not be published: %v", e.err)
	}
	return fmt.Sprintf("the message was stored in the outbox, and could not be sent to queue %q: %v", e.queue, e.err)
}

func (e *unsentError) Unwrap() error { return e.err }

// FaultClass returns the class of the fault in the error queue.
func (e *unsentError) FaultClass() string { return "undeliverable" }
