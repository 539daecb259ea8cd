package pipeline

import (
	"context"
	"maps"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Pipeline is the seven stages of an endpoint. The zero value has no behaviors.
//
// A received message runs through Receive, Logical and, once per handler, Invoke; a sent message
// through Outgoing; all messages that the handlers of one message sent together through Dispatch; a
// failed message through Recover; what the endpoint's outbox sends through Relay.
type Pipeline struct {
	Receive  Stage[*Receive]
	Logical  Stage[*Logical]
	Invoke   Stage[*Invoke]
	Outgoing Stage[*Outgoing]
	Dispatch Stage[*Dispatch]
	Recover  Stage[*Recover]
	Relay    Stage[*Relay]
}

// Sender sends messages. The session of a handler and the endpoint are Senders. Messages that are
// sent while an incoming message is handled are dispatched when all its handlers have returned nil.
type Sender interface {
	Send(ctx context.Context, m any, opts ...SendOption) error
	Publish(ctx context.Context, m any, opts ...PublishOption) error
}

// Receive is a received message before it is decoded.
type Receive struct {
	// Message is the delivered message, of which copies to the error queue are made. It must not be
	// changed.
	Message *transport.Message
	// Headers and Body belong to this attempt: behaviors may change the headers and replace the
	// body. The bytes belong to the transport.
	Headers header.Map
	Body    []byte
	// Queue is where the message was received from.
	Queue string
	// Attempt has the delivery count of the message.
	Attempt transport.Attempt
	// Audit are headers that the audit copy of the message has in addition. Behaviors may add some
	// until the Dispatch stage has ended.
	Audit header.Map

	sender Sender
	first  state       // of the first key
	more   map[any]any // of the others
}

// state is a behavior's own value on an attempt.
type state struct{ key, value any }

// NewReceive returns the stage value of a received message. Behaviors send with sender. The Headers
// are those of m: the caller replaces them by a copy before it runs behaviors that change them.
func NewReceive(m *transport.Message, sender Sender) Receive {
	return Receive{Message: m, Headers: m.Headers, Body: m.Body, sender: sender}
}

// Recovering returns the stage value with which a failed attempt is recovered: with the same
// message, headers of its own, and the same state.
func (r *Receive) Recovering(sender Sender) Receive {
	again := *r
	again.Headers, again.sender, again.more = r.Headers.Clone(), sender, maps.Clone(r.more)
	return again
}

// State returns the value that SetState has stored for key, or nil.
func (r *Receive) State(key any) any {
	if r.first.key == key {
		return r.first.value
	}
	return r.more[key]
}

// SetState stores a value of a behavior's own for the attempt. The later stages of the attempt find
// it by the same key with [Receive.State], and so does the Recover stage; another attempt starts
// without it. The key is of a type of the behavior's own, as with context.WithValue. SetState must
// not run at the same time as State or SetState: call it before next.
func (r *Receive) SetState(key, value any) {
	switch {
	case r.first.key == nil || r.first.key == key:
		r.first = state{key, value}
	case r.more == nil:
		r.more = map[any]any{key: value}
	default:
		r.more[key] = value
	}
}

// Sender returns the Sender of this message.
func (r *Receive) Sender() Sender { return r.sender }

// Native returns the broker's property with a name, or "".
func (r *Receive) Native(name string) string { return r.Message.Native[name] }

// Logical is a decoded message.
type Logical struct {
	*Receive
	// Type is the wire name by which the message was recognised.
	Type string
	// Value is the message: a pointer to the registered struct.
	Value any
}

// Invoke is one call of one handler.
type Invoke struct {
	*Logical
	// Handler is the handler's name.
	Handler string
	// Value is the argument of the handler: that of Logical, or for a handler of a base type a
	// pointer to that type's struct, decoded from the same body.
	Value any
}

// Outgoing is a message that is sent, before it is encoded.
type Outgoing struct {
	// Intent is [header.IntentSend], IntentPublish or IntentReply.
	Intent string
	// Value is the argument of Send, Publish or Reply.
	Value any
	// Types are its wire names, most concrete first.
	Types []string
	// MessageID is a new id unless the caller set it.
	MessageID string
	// Headers are the headers so far. At the end of the stage the endpoint adds others. It replaces
	// those that describe the body and the sending of a message ([header.KindSending]), and no
	// others. To change these too, a behavior changes the headers of Operation.Message after its
	// call of next.
	Headers header.Map
	// Queue is the destination of a send or reply; empty for a publish.
	Queue string
	// ReplyTo is the queue of replies; empty stands for the endpoint's queue.
	ReplyTo string
	// After, At and TTL are as in [transport.Operation].
	After time.Duration
	At    time.Time
	TTL   time.Duration
	// Immediately dispatches the message at once instead of with the others of the handler.
	Immediately bool
	// Tx is the caller's transaction in which the message is sent. Often nil.
	Tx any
	// ViaOutbox stores the message in the endpoint's outbox, which sends it later. It is for
	// messages that are sent outside a handler.
	ViaOutbox bool
	// Timer is the stored name of the timer that the message is; empty if it is none. The option
	// TimerName of package endpoint sets it.
	Timer string
	// Properties are for the transport driver. Often nil.
	Properties map[string]string
	// Receipt, if set, receives the receipt of the message after it was accepted.
	Receipt *transport.Receipt
	// Err is the error of an option. If it is set when all options are applied, the call fails with
	// it, and nothing is sent.
	Err error
	// Incoming is the message being handled, nil outside a handler.
	Incoming *Receive
	// Operation is the encoded message; empty before the end of the stage. Without a call of next
	// the message is not sent.
	Operation transport.Operation
}

// Dispatch holds the messages that are dispatched together: all that the handlers of one message
// sent, or one that was sent outside a handler.
type Dispatch struct {
	// Operations are in the order of sending. A behavior may add, change and remove operations, but
	// must not change the messages that they point to.
	Operations []transport.Operation
	// Receipts are the transport's, after the end of the stage. Nil if there are none, as for
	// messages that were dispatched together with a completed one.
	Receipts []transport.Receipt
	// Incoming is the message being handled, which this dispatch completes; nil outside a handler
	// and for messages that are dispatched immediately.
	Incoming *Receive
	// Tx is the caller's transaction in which the operations are sent. Nil within a handler.
	Tx any
	// ViaOutbox reports whether the operations are stored in the endpoint's outbox. The end of the
	// stage then means that they are stored, and not that the broker has accepted them.
	ViaOutbox bool
}

// Recover is a failed message and the action for it. Messages that a behavior sends by its Sender
// are dispatched together with the action; before a retry. In atomic mode its writes in the
// session's transaction are committed with them; a retry rolls the writes back. When a behavior
// returns an error or panics, the messages and writes of the stage are lost, and its last Action is
// carried out.
type Recover struct {
	*Receive
	// Failure describes the failure.
	Failure recoverability.Failure
	// Action is the decision of the policy. A behavior may replace it.
	Action recoverability.Action
	// Fault are the headers that a move to the error queue adds.
	Fault header.Map
}

// Relay holds messages that the endpoint's outbox sends to the broker together. They were stored by
// several sends or handlers, perhaps in another process, or one of them is a refused message that
// moves to the error queue. Messages that the broker does not accept run through the stage again,
// and so do messages of a process that has ended: a message may have been sent before. Timers of an
// endpoint without an outbox do not run through the stage.
//
// A behavior calls next once, and returns its error as it is or wraps it: that error tells which of
// the messages the broker has accepted. Without a call of next the messages are lost.
type Relay struct {
	// Operations are in the order of sending. A behavior must not change them.
	Operations []transport.Operation
}
