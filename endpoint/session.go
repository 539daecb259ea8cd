package endpoint

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/fault"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Session is what a handler knows and can do about the message it handles. It is
// over when the message's handlers have returned. Its methods may be called by
// several goroutines of the handler.
type Session struct {
	in *attempt

	mu   sync.Mutex // guards the rest
	over bool
	last bool // no handler follows the one that runs
	ops  []transport.Operation
	tx   transport.Tx
}

var _ pipeline.Sender = (*Session)(nil)

// MessageID is the identity of the message: the same at every attempt.
func (s *Session) MessageID() string { return s.in.id }

// Header is the value of one of the message's headers, or "".
func (s *Session) Header(name string) string { return s.in.receive.Headers.Get(name) }

// Headers are a copy of the message's headers.
func (s *Session) Headers() header.Map { return s.in.receive.Headers.Clone() }

// Attempt says how often the message has been handed out, this time included.
func (s *Session) Attempt() transport.Attempt { return s.in.receive.Attempt }

// Native is the broker's property of that name, or "".
func (s *Session) Native(name string) string { return s.in.receive.Native(name) }

// Send sends m, a registered command or response, to the queue of its route or of
// [To]. It leaves when all handlers of the message have returned nil.
func (s *Session) Send(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.e.send(ctx, m, "", opts, s)
}

// SendLocal sends m, a registered command or response, to the endpoint's own queue. It leaves
// when all handlers of the message have returned nil.
func (s *Session) SendLocal(ctx context.Context, m any, opts ...SendOption) error {
	return s.in.e.sendLocal(ctx, m, opts, s)
}

// Forward sends the message being handled to the queue of that name as it was received: with the
// same id, headers and body, past the Outgoing stage. Headers that count retries are left out, so that it has all of its
// attempts there. It leaves when all handlers of the message have returned nil.
func (s *Session) Forward(_ context.Context, queue string) error {
	if queue == "" {
		return errors.New("forward: the queue is empty")
	}
	op := s.in.copyTo(queue, fault.ForwardHeaders(s.in.original.Headers), 0)
	op.Message.Body = slices.Clone(op.Message.Body) // the Dispatch stage may change it
	return s.keep(op)
}

// Publish sends m, a registered event, to all who subscribed to its type or one of
// its base types. It leaves when all handlers of the message have returned nil.
func (s *Session) Publish(ctx context.Context, m any, opts ...PublishOption) error {
	return s.in.e.publish(ctx, m, opts, s)
}

// Reply sends m to where the message being handled wants its answer. It leaves when all
// handlers of the message have returned nil.
func (s *Session) Reply(ctx context.Context, m any, opts ...ReplyOption) error {
	return s.in.e.reply(ctx, m, opts, s)
}

// DoNotContinue keeps the handlers that follow from being called for this message. The message
// counts as handled once this handler has returned nil, and what was sent leaves.
func (s *Session) DoNotContinue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = true
}

// Tx returns the transaction in which the message is completed: begun at the first call, the same for all
// handlers of the message. It needs [SendsAtomicWithReceive]. A function of the driver's package uses it,
// such as postgres.Tx or sqlite.OnCommit. The endpoint commits it when the handlers have returned nil,
// and rolls it back otherwise.
func (s *Session) Tx(ctx context.Context) (transport.HandlerTx, error) {
	if s.in.e.cfg.Transactions != SendsAtomicWithReceive {
		return transport.HandlerTx{}, errors.New("no transaction: set Config.Transactions to SendsAtomicWithReceive")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return transport.HandlerTx{}, ErrSessionOver
	}
	if s.tx == nil {
		t, ok := s.in.delivery.(transport.Transactor)
		if !ok {
			return transport.HandlerTx{}, errors.New("no transaction: the transport offers none")
		}
		tx, err := t.Begin(ctx)
		if err != nil {
			return transport.HandlerTx{}, err
		}
		s.tx = tx
	}
	return transport.NewHandlerTx(s.tx), nil
}

// keep adds an operation to what leaves with the message.
func (s *Session) keep(op transport.Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return ErrSessionOver
	}
	s.ops = append(s.ops, op)
	return nil
}

// writes tells whether there is a transaction.
func (s *Session) writes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx != nil
}

// begin starts handlers, perhaps once more, and gives how many operations were kept before.
func (s *Session) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = false
	return len(s.ops)
}

// enough tells whether a handler wanted to be the last.
func (s *Session) enough() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// drop forgets all but the first n operations: a handler failed, and a behavior may yet have
// the message handled again.
func (s *Session) drop(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = s.ops[:min(n, len(s.ops))]
}

// end closes the session and gives what was sent and the transaction, if any.
func (s *Session) end() ([]transport.Operation, transport.Tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.ops, s.tx
}

// used tells whether anything leaves with the message. The session is over.
func (s *Session) used() bool { return len(s.ops) > 0 || s.tx != nil }
