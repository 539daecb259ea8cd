package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Session gives a handler the properties of its message and sends messages with it. It is over when
// the handlers of the message have returned. It is safe for concurrent use by goroutines of the
// handler.
type Session struct {
	in *attempt

	recovers bool // it is one of a Recover stage

	key *transport.HandledKey // to be recorded with the message; nil: none

	mu      sync.Mutex // guards the rest
	over    bool
	last    bool // no handler follows the one that runs
	ops     []transport.Operation
	tx      transport.Tx
	failed  *mark          // of the last call that has failed with tx open, perhaps with writes
	call    *stateful.Call // of the handler that runs, if it has records
	storing error          // why the database of the outbox or inbox did not do what it was to do last
	raised  error          // of Raise
}

var _ pipeline.Sender = (*Session)(nil)

// MessageID returns the id of the message, the same at every attempt. If the sender has given the
// message no id, MessageID returns "native:" and the broker's number of the message, or on RabbitMQ
// "content:" and a hash of the message, or "". Several messages may have such an id, see
// [Session.HasID].
func (s *Session) MessageID() string { return s.in.id }

// HasID reports whether the sender has given the message its id. If not, the inbox does not
// recognize a second delivery of the message, and another message may have the same
// [Session.MessageID], so do not use that as an idempotency key.
func (s *Session) HasID() bool { return isNamed(s.in.id) }

// Header returns the value of a header of the message, or "".
func (s *Session) Header(name string) string { return s.in.receive.Headers.Get(name) }

// Headers returns a copy of the message's headers.
func (s *Session) Headers() header.Map { return s.in.receive.Headers.Clone() }

// Attempt returns the delivery count of the message, this delivery included.
func (s *Session) Attempt() transport.Attempt { return s.in.receive.Attempt }

// Native returns the broker's property of that name, or "".
func (s *Session) Native(name string) string { return s.in.receive.Native(name) }

// Send sends m, a registered command or response, to the queue of its route or of [To], when all
// handlers of the message have returned nil.
func (s *Session) Send(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.e.send(ctx, m, "", opts, s)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue, when all
// handlers of the message have returned nil.
func (s *Session) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.e.sendLocal(ctx, m, opts, s)
}

// Forward sends the message being handled to another queue as it was received, when all handlers of
// the message have returned nil: with the same id, headers and body, and without the Outgoing
// stage. Headers that count retries are left out, so the message has all of its attempts there.
func (s *Session) Forward(_ context.Context, queue string) error {
	if queue == "" {
		return errors.New("forward: the queue is empty")
	}
	if queue = s.in.live.names.of(queue); queue == s.in.queue && s.key != nil {
		return fmt.Errorf("forward to %q: that is the queue of the message, where it would be taken for a message that was handled before: "+
			"use SendLocal", queue)
	}
	op := s.in.copyTo(queue, fault.ForwardHeaders(s.in.original.Headers), 0)
	m := op.Message // the Dispatch stage may change it
	m.Body, m.Native = slices.Clone(m.Body), maps.Clone(m.Native)
	return s.keep(op)
}

// Publish sends m, a registered event, to the subscribers of its type and of its base types, when
// all handlers of the message have returned nil.
func (s *Session) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return s.in.e.publish(ctx, m, opts, s)
}

// Reply sends m to the reply-to address of the message being handled, when all handlers of the
// message have returned nil.
func (s *Session) Reply(ctx context.Context, m any, opts ...ReplyOption) error {
	queue := s.in.receive.Headers.Get(header.ReplyToAddress)
	return sendAs(ctx, &s.in.e.sender, header.IntentReply, m, queue, opts, ReplyOption.ApplyReply, s)
}

// DoNotContinue skips the remaining handlers of the message. It is handled, and its messages are
// sent, when this handler has returned nil.
func (s *Session) DoNotContinue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = true
}

// Tx returns the transaction in which the message is completed, or in which the outbox stores that
// it was handled: begun at the first call, the same for all handlers of the message. It needs
// [Config].Outbox or [SendsAtomicWithReceive]. A function of the driver's package uses it, such as
// postgres.Tx or sqlite.OnCommit. The endpoint commits it when the handlers have returned nil, and
// rolls it back otherwise.
//
// If a behavior calls next again after a failure, or drops the error, the transaction that the
// failed handlers have begun is rolled back, and another one begins. In a transaction that was open
// before, next cannot be called again.
func (s *Session) Tx(ctx context.Context) (transport.HandlerTx, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return transport.HandlerTx{}, ErrSessionOver
	}
	s.undo(ctx)
	if s.tx == nil {
		tx, err := s.beginTx(ctx)
		if err != nil {
			return transport.HandlerTx{}, err
		}
		s.tx = tx
	}
	return transport.NewHandlerTx(s.tx), nil
}

// beginTx begins the transaction of the session. mu is held.
func (s *Session) beginTx(ctx context.Context) (transport.Tx, error) {
	if o := s.in.live.outbox; o != nil {
		tx, err := o.store.BeginStore(ctx, transport.OutboxEntry{Inbox: o.inbox, Key: s.key})
		if err != nil {
			s.storing = fmt.Errorf("begin in outbox %q: %w", o.queue, err)
			if ctx.Err() != nil {
				s.storing = &expiredError{s.storing}
			}
			return nil, s.storing
		}
		s.storing = nil
		return tx, nil
	}
	if s.in.e.cfg.Transactions != SendsAtomicWithReceive {
		return nil, errors.New("no transaction: set Config.Outbox, or Config.Transactions to SendsAtomicWithReceive")
	}
	t, ok := s.in.delivery.(transport.Transactor)
	if !ok {
		return nil, errors.New("no transaction: the transport offers none")
	}
	return t.Begin(ctx)
}

// storeFailed records an error of the outbox or inbox, and returns it.
func (s *Session) storeFailed(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storing = err
	return err
}

// storeError returns the last error of the outbox or inbox; nil if there was none.
func (s *Session) storeError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storing
}

// keep adds an operation to those that are sent with the message.
func (s *Session) keep(op transport.Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrSessionOver
	}
	s.ops = append(s.ops, op)
	return nil
}

// setCall sets the call of the handler that runs; nil after it.
func (s *Session) setCall(c *stateful.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call = c
}

// currentCall returns the call of the handler that runs, if it has records.
func (s *Session) currentCall() *stateful.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.call
}

// mark is the state of a session before a call of handlers.
type mark struct {
	handler int  // the number of the handler; allHandlers for a call of all
	ops     int  // the number of operations
	open    bool // whether the transaction had begun
}

// allHandlers is the number in the mark of a call of all handlers.
const allHandlers = -1

var errWritesLeft = errors.New("a behavior calls next again after a failure, in a transaction that was open before the first call: " +
	"what the first call wrote cannot be undone alone; return the error, or begin the transaction behind that behavior")

// begin starts the handler of a number, or all, perhaps again. What a failed call wrote is rolled
// back if the call has begun the transaction. Otherwise the same call cannot be made again.
func (s *Session) begin(ctx context.Context, handler int) (mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = false
	s.undo(ctx)
	if s.failed != nil && s.failed.handler == handler {
		return mark{}, errWritesLeft
	}
	return mark{handler, len(s.ops), s.tx != nil}, nil
}

// undo rolls the transaction back if a failed call has begun it. mu is held.
func (s *Session) undo(ctx context.Context) {
	if s.failed == nil || s.failed.open || s.tx == nil {
		return
	}
	tx := s.tx
	s.tx, s.failed = nil, nil
	s.in.settlement.undo(ctx, tx)
}

// finish rolls back what a handler wrote whose error a behavior has dropped, if the handler has
// begun the transaction.
func (s *Session) finish(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo(ctx)
}

// enough reports whether a handler called DoNotContinue.
func (s *Session) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// drop removes the operations since m, after a handler failed: a behavior may call the handlers
// again.
func (s *Session) drop(m mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops, s.raised = s.ops[:min(m.ops, len(s.ops))], nil
	if s.tx != nil {
		s.failed = &m
	}
}

// end closes the session and returns its operations and its transaction, if any.
func (s *Session) end() ([]transport.Operation, transport.Tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return withoutCancelled(s.ops), s.tx
}
