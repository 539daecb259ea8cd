// Package audit completes messages that were processed: with the copy for the audit queue, and with
// the notice to ServiceControl that the retry of a failed message has ended.
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/notify"
	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Auditor has the parts that the messages of an endpoint share. An Auditor is safe for concurrent
// use.
type Auditor struct {
	AuditQueue  string        // "" for no audit copies
	ExpireAfter time.Duration // of audit copies
	Refusals    Refusals
	Conn        transport.Conn

	acks ackQueue
}

// Failed is called after a message could not be completed: the queue of the notices may be gone.
func (a *Auditor) Failed() { a.acks.forget() }

// Message is a message that was processed. Its fields are set before the first call.
type Message struct {
	*settle.Delivery
	*Auditor

	refused *refusedAudit // nil unless the audit copy was refused
}

// Copied has the values of an audit copy beside the message.
type Copied struct {
	StartedAt time.Time
	Headers   *header.Map // of the user
}

// Complete sends ops, the notice to ServiceControl that the retry of a failed message has ended
// with an outcome, and the audit copy unless copied is nil. Then the message is completed, in tx if
// tx is not nil.
func (m *Message) Complete(
	ctx context.Context, tx transport.Tx, ops []transport.Operation, copied *Copied, outcome string,
) error {
	if m.AuditQueue == "" {
		copied = nil
	}
	notice := m.Notice(ctx, outcome)
	switch {
	case notice == nil && copied == nil:
		return m.Delivery.Complete(ctx, tx, ops)
	case !m.IsUnit(tx):
		return m.completeInOrder(ctx, ops, notice, copied)
	}
	for {
		all := m.together(ops, notice, copied)
		err := m.Delivery.Complete(ctx, tx, all)
		switch {
		case notice != nil && noQueueFor(err, len(ops)):
			m.noticeFailed(ctx, notice, err)
			notice = nil
		case copied != nil && m.isRefused(copies.ErrorOf(err, len(all)-1)):
		case err == nil && copied != nil:
			m.report(ctx)
			return nil
		default:
			return err
		}
		if tx != nil { // it is over
			return &IncompleteError{errtree.Mark{Err: err}}
		}
	}
}

// completeInOrder is completeProcessed where sending several messages is no unit. The notice
// follows when ops have been sent, and the audit copy follows the notice: neither reports the
// success of an attempt whose messages were refused.
func (m *Message) completeInOrder(
	ctx context.Context, ops []transport.Operation, notice *transport.Operation, copied *Copied,
) error {
	if len(ops) > 0 {
		if err := m.SendAhead(ops); err != nil {
			return err
		}
	}
	if notice != nil {
		err := m.SendAhead([]transport.Operation{*notice})
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			m.noticeFailed(ctx, notice, err)
			notice = nil
		case err != nil:
			return fmt.Errorf("acknowledgement for ServiceControl to queue %q: %w", notice.Queue, err)
		}
	}
	if copied == nil {
		return m.Delivery.Complete(ctx, nil, nil)
	}
	for {
		err := m.Delivery.Complete(ctx, nil, []transport.Operation{m.copy(copied, notice != nil)})
		switch {
		case m.isRefused(copies.ErrorOf(err, 0)):
		case err == nil:
			m.report(ctx)
			return nil
		default:
			return fmt.Errorf("audit copy to queue %q: %w", m.AuditQueue, err)
		}
	}
}

// together returns ops, and behind them the notice and the audit copy of copied, which may be nil.
func (m *Message) together(
	ops []transport.Operation, notice *transport.Operation, copied *Copied,
) []transport.Operation {
	all := slices.Clip(ops)
	if notice != nil {
		all = append(all, *notice)
	}
	if copied != nil {
		all = append(all, m.copy(copied, notice != nil))
	}
	return all
}

// copy returns the copy for the audit queue, or for the error queue if the audit queue has refused
// the copy. After a notice, ServiceControl sends no audit copy of its own.
func (m *Message) copy(copied *Copied, noticed bool) transport.Operation {
	h, host := fault.AuditHeaders(m.Original.Headers, 9), &m.Refusals.Host
	h.Set(header.ProcessingStarted, header.FormatTime(copied.StartedAt))
	h.Set(header.ProcessingEnded, header.FormatTime(time.Now()))
	h.Set(header.ProcessingEndpoint, host.Endpoint)
	h.Set(header.ProcessingMachine, host.Machine)
	h.Set(header.HostID, host.HostID)
	h.Set(header.HostDisplayName, host.DisplayName)
	if noticed {
		h.Set(header.RetryAcknowledged, "True")
	}
	for name, value := range copied.Headers.All() {
		h.Set(name, value)
	}
	op := m.CopyTo(m.AuditQueue, h, 0)
	op.TTL = m.ExpireAfter
	if m.refused != nil {
		checker, _ := m.Conn.(transport.Checker)
		return m.refused.next(op, &m.Refusals, checker)
	}
	return op
}

// With returns ops, and behind them the notice and the audit copy, for a message whose outbox
// stores them.
func (m *Message) With(ctx context.Context, ops []transport.Operation, copied *Copied) []transport.Operation {
	if m.AuditQueue == "" {
		copied = nil
	}
	return m.together(ops, m.Notice(ctx, ""), copied)
}

// Notice returns the notice to ServiceControl that a returned message has been processed, or nil if
// ServiceControl expects no notice. ServiceControl takes each notice for a success. The outcome, if
// any, says why the message was not handled.
func (m *Message) Notice(ctx context.Context, outcome string) *transport.Operation {
	queue := m.noticeQueue(ctx)
	if queue == "" {
		return nil
	}
	now := time.Now()
	sent := &transport.Message{ID: uuid.New(now)}
	sent.Headers.Set(header.MessageID, sent.ID)
	sent.Headers.Set(header.ControlMessage, "True")
	sent.Headers.Set(header.RetrySuccessful, header.FormatTime(now))
	sent.Headers.Set(header.RetryUniqueID, m.Original.Headers.Get(header.RetryUniqueID))
	if outcome != "" {
		sent.Headers.Set(header.HoldfastReturnOutcome, outcome)
	}
	return &transport.Operation{Message: sent, Queue: queue}
}

// noticeQueue returns the queue for the notice; "" for none, and for a missing queue.
// ServiceControl names the queue in a message that ServiceControl returns from the error queue. A
// missing queue must not fail a message that was handled: ServiceControl then reads the success
// from the audit copy.
func (m *Message) noticeQueue(ctx context.Context) string {
	queue := m.Original.Headers.Get(header.RetryAcknowledgement)
	if queue == "" || m.Original.Headers.Get(header.RetryUniqueID) == "" {
		return ""
	}
	inspector, ok := m.Conn.(transport.Inspector)
	look := func() error {
		if !ok {
			return nil
		}
		_, err := inspector.Inspect(m.Context(), queue)
		if err != nil {
			m.LogError(ctx, slog.LevelWarn, "the acknowledgement queue of ServiceControl cannot be inspected",
				err, slog.String("queue", queue))
		}
		return err
	}
	if !m.acks.exists(queue, look) {
		return ""
	}
	return queue
}

// noticeFailed records that the queue of a notice is missing.
func (m *Message) noticeFailed(ctx context.Context, notice *transport.Operation, err error) {
	m.acks.missing(notice.Queue)
	m.LogError(ctx, slog.LevelWarn, "the acknowledgement queue of ServiceControl is missing: "+
		"it learns from the audit copy that a message was processed", err, slog.String("queue", notice.Queue))
}

// IncompleteError is the error of a transaction that could not be completed because the queue of
// the notice is missing, or because the audit copy was refused. The next attempt sends no notice,
// or another copy.
type IncompleteError struct{ errtree.Mark }

// noQueueFor reports whether a queue is missing for operation i of a dispatch that failed with err.
func noQueueFor(err error, i int) bool {
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	return ok && slices.ContainsFunc(refusal.Ops, func(op transport.OpError) bool {
		return op.Index == i && errors.Is(op.Err, transport.ErrNoQueue)
	})
}

// isRefused reports whether err refuses the audit copy that was sent last, so that the next copy
// may be accepted.
func (m *Message) isRefused(err error) bool {
	switch a := m.refused; {
	case !copies.OfMessage(err):
		return false
	case a == nil:
		m.refused = &refusedAudit{err: err}
		return true
	default:
		a.tried++
		return !a.ended
	}
}

// report logs and notifies that the error queue has the audit copy, if the audit queue refused the
// copy.
func (m *Message) report(ctx context.Context) {
	if m.refused != nil && !m.LostLease() {
		m.refused.copied.Report(ctx, "the audit copy of a message was refused and moved to the error queue: the message was handled")
	}
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
	there bool // the queue exists, or the answer is not known
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

// refusedAudit is the audit copy of a handled message, which the audit queue has refused because of
// the content. The message must not be handled again: the copy moves to the error queue.
type refusedAudit struct {
	err    error // of the audit queue
	tried  int   // candidates that the error queue refused, and the driver did not foresee
	ended  bool  // the error queue refused all candidates
	copied *Refused
}

// next returns the next candidate for the error queue of op, the audit copy. After the last
// candidate next returns the last candidate again.
func (a *refusedAudit) next(
	op transport.Operation, by *Refusals, checker transport.Checker,
) transport.Operation {
	a.copied = by.Of(op.Message, op.Queue, &copies.CopyError{
		Doing: fmt.Sprintf("the message was handled, and its audit copy could not be sent to queue %q", op.Queue),
		Err:   a.err,
	}, "audit")
	skip := a.tried
	a.ended = true
	_ = a.copied.ToErrorQueue(func(candidate transport.Operation) error {
		op = candidate
		if checker != nil {
			if err := checker.Check(&candidate); copies.OfMessage(err) {
				return err
			}
		}
		if skip--; skip >= 0 {
			return transport.ErrContent
		}
		a.ended = false
		return nil
	})
	return op
}
