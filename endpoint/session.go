package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/endpoint/internal/settle"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
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
	in   *attempt
	unit work.Unit

	recovers bool // it is one of a Recover stage

	mu     sync.Mutex     // guards the rest
	last   bool           // no handler follows the one that runs
	call   *stateful.Call // of the handler that runs, if it has records
	raised error          // of Raise
}

var _ pipeline.Sender = (*Session)(nil)

// MessageID returns the id of the message, the same at every attempt. If the sender has given the
// message no id, MessageID returns "native:" and the broker's number of the message, or on RabbitMQ
// "content:" and a hash of the message, or "". Several messages may have such an id, see
// [Session.HasID].
func (s *Session) MessageID() string { return s.in.ID }

// HasID reports whether the sender has given the message its id. If not, the inbox does not
// recognize a second delivery of the message, and another message may have the same
// [Session.MessageID], so do not use that as an idempotency key.
func (s *Session) HasID() bool { return settle.IsNamed(s.in.ID) }

// Header returns the value of a header of the message, or "".
func (s *Session) Header(name string) string { return s.in.Receive.Headers.Get(name) }

// Headers returns a copy of the message's headers.
func (s *Session) Headers() header.Map { return s.in.Receive.Headers.Clone() }

// Attempt returns the delivery count of the message, this delivery included.
func (s *Session) Attempt() transport.Attempt { return s.in.Receive.Attempt }

// Native returns the broker's property of that name, or "".
func (s *Session) Native(name string) string { return s.in.Receive.Native(name) }

// Send sends m, a registered command or response, to the queue of its route or of [To], when all
// handlers of the message have returned nil.
func (s *Session) Send(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.live.e.send(ctx, m, "", opts, s)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue, when all
// handlers of the message have returned nil.
func (s *Session) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.live.e.sendLocal(ctx, m, opts, s)
}

// Forward sends the message being handled to another queue as it was received, when all handlers of
// the message have returned nil: with the same id, headers and body, and without the Outgoing
// stage. Headers that count retries are left out, so the message has all of its attempts there.
func (s *Session) Forward(_ context.Context, queue string) error {
	if queue == "" {
		return errors.New("forward: the queue is empty")
	}
	if queue = s.in.live.names.Of(queue); queue == s.in.Queue && s.unit.Key != nil {
		return fmt.Errorf("forward to %q: that is the queue of the message, where it would be taken for a message that was handled before: "+
			"use SendLocal", queue)
	}
	op := s.in.CopyTo(queue, fault.ForwardHeaders(s.in.Original.Headers), 0)
	m := op.Message // the Dispatch stage may change it
	m.Body, m.Native = slices.Clone(m.Body), maps.Clone(m.Native)
	return s.unit.Keep(op)
}

// Publish sends m, a registered event, to the subscribers of its type and of its base types, when
// all handlers of the message have returned nil.
func (s *Session) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return s.in.live.e.publish(ctx, m, opts, s)
}

// Reply sends m to the reply-to address of the message being handled, when all handlers of the
// message have returned nil.
func (s *Session) Reply(ctx context.Context, m any, opts ...ReplyOption) error {
	queue := s.in.Receive.Headers.Get(header.ReplyToAddress)
	return sendAs(ctx, &s.in.live.e.sender, header.IntentReply, m, queue, opts, ReplyOption.ApplyReply, s)
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
	tx, err := s.unit.Tx(ctx)
	if err != nil {
		return transport.HandlerTx{}, err //nolint:wrapcheck // the database names itself
	}
	return transport.NewHandlerTx(tx), nil
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

// begin starts the handler of a number, or all of them, perhaps again: see [work.Unit.Begin].
func (s *Session) begin(ctx context.Context, handler int) (work.Mark, error) {
	s.mu.Lock()
	s.last = false
	s.mu.Unlock()
	return s.unit.Begin(ctx, handler) //nolint:wrapcheck // the caller names the handler
}

// drop removes what a failed call of handlers has sent and raised.
func (s *Session) drop(m work.Mark) {
	s.unit.Drop(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raised = nil
}

// enough reports whether a handler called DoNotContinue.
func (s *Session) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// unitStore begins the transactions of the endpoint's messages.
type unitStore struct{ live *live }

// Begin implements [work.Store].
func (s *unitStore) Begin(
	ctx context.Context, key *transport.HandledKey, d transport.Delivery,
) (transport.Tx, error) {
	if o := s.live.Outbox; o != nil {
		return o.Begin(ctx, key)
	}
	if s.live.e.cfg.Transactions != SendsAtomicWithReceive {
		return nil, errors.New("no transaction: set Config.Outbox, or Config.Transactions to SendsAtomicWithReceive")
	}
	t, ok := d.(transport.Transactor)
	if !ok {
		return nil, errors.New("no transaction: the transport offers none")
	}
	return t.Begin(ctx)
}

// Undo implements [work.Store].
func (s *unitStore) Undo(ctx context.Context, tx transport.Tx, id string) {
	s.live.Settler.Undo(ctx, tx, id)
}
