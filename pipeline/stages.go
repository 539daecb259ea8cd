package pipeline

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Pipeline is the six stages of an endpoint. The zero value has no behaviors.
//
// A message that comes in runs through Receive, Logical and, once per handler,
// Invoke; one that goes out through Outgoing; what the handlers of one message
// sent, together, through Dispatch; a failed message through Recover.
type Pipeline struct {
	Receive  Stage[*Receive]
	Logical  Stage[*Logical]
	Invoke   Stage[*Invoke]
	Outgoing Stage[*Outgoing]
	Dispatch Stage[*Dispatch]
	Recover  Stage[*Recover]
}

// Sender sends messages; the session of a handler and the endpoint both do.
// What is sent by the Sender of an incoming message leaves when its handlers have
// all returned nil.
type Sender interface {
	Send(ctx context.Context, m any, opts ...SendOption) error
	Publish(ctx context.Context, m any, opts ...PublishOption) error
}

// Receive is a message as it came in, before it is decoded.
type Receive struct {
	// Message is what the transport delivered. Copies to the error queue are made of
	// it: it must not be changed.
	Message *transport.Message
	// Headers and Body are this attempt's own: behaviors may change the headers and
	// put another body in the place of this one; the bytes are the transport's.
	Headers header.Map
	Body    []byte
	// Queue is where the message was received from.
	Queue string
	// Attempt says how often the message has been handed out, this time included.
	Attempt transport.Attempt

	sender Sender
}

// NewReceive makes the stage value of a received message. Sender is what
// behaviors send with. Its Headers are still those of m: who runs behaviors that
// change them puts a copy there first.
func NewReceive(m *transport.Message, sender Sender) Receive {
	return Receive{Message: m, Headers: m.Headers, Body: m.Body, sender: sender}
}

// Sender sends as part of handling this message.
func (r *Receive) Sender() Sender { return r.sender }

// Native is the broker's property of that name, or "".
func (r *Receive) Native(name string) string { return r.Message.Native[name] }

// Logical is a decoded message.
type Logical struct {
	*Receive
	// Type is the wire name under which the message was recognised.
	Type string
	// Value is the message: a pointer to the registered struct.
	Value any
}

// Invoke is one call of one handler.
type Invoke struct {
	*Logical
	// Handler is the handler's name.
	Handler string
	// Value is what the handler is called with: that of Logical, or for a handler of a base
	// type a pointer to that type's struct, read from the same body.
	Value any
}

// Outgoing is a message on its way out, before it is encoded.
type Outgoing struct {
	// Intent is [header.IntentSend], IntentPublish or IntentReply.
	Intent string
	// Value is what the caller gave to Send, Publish or Reply.
	Value any
	// Types are its wire names, most concrete first.
	Types []string
	// MessageID is the message's identity, made up unless the caller set it.
	MessageID string
	// Headers are the headers so far; what the endpoint adds afterwards does not
	// overwrite them.
	Headers header.Map
	// Queue is where a send or reply goes; empty for a publish.
	Queue string
	// ReplyTo is where replies go; empty stands for the endpoint's own queue.
	ReplyTo string
	// After, At and TTL are as in [transport.Operation].
	After time.Duration
	At    time.Time
	TTL   time.Duration
	// Immediately sends at once instead of with the other messages of the handler.
	Immediately bool
	// Tx is the transaction of the caller's that the message is sent in. Often nil.
	Tx any
	// Properties are for the transport driver. Often nil.
	Properties map[string]string
	// Receipt, when set, is given the receipt of the message after it was accepted.
	Receipt *transport.Receipt
	// Incoming is the message being handled, nil outside a handler.
	Incoming *Receive
	// Operation is what the message was encoded into: empty before the end of the
	// stage. A behavior that does not call next keeps the message from being sent.
	Operation transport.Operation
}

// Dispatch is what leaves together: all that the handlers of one message sent, or
// one message sent outside a handler.
type Dispatch struct {
	// Operations are in the order of sending. A behavior may add, change and remove
	// operations, but not what their Message points to.
	Operations []transport.Operation
	// Receipts are what the transport returned, after the end of the stage. Nil when it
	// returned none, as for what left together with a completed message.
	Receipts []transport.Receipt
	// Incoming is the message being handled and completed by this dispatch, nil
	// outside a handler and for what leaves immediately.
	Incoming *Receive
	// Tx is the transaction of the caller's that the operations are sent in: they leave when
	// it is committed, if ever. Nil within a handler.
	Tx any
}

// Recover is a failed message and what is about to be done with it. What a
// behavior sends by its Sender leaves together with the message; before a retry. In
// atomic mode the same goes for what it writes in the session's transaction, which a retry
// rolls back. The message is dealt with whatever the behaviors do: when one returns an error or
// panics, what the stage sent and wrote so far is lost, and the Action that it left is carried out.
type Recover struct {
	*Receive
	// Failure is what happened.
	Failure recoverability.Failure
	// Action is what the policy decided. A behavior may decide otherwise.
	Action recoverability.Action
	// Fault are the headers that a move to the error queue adds.
	Fault header.Map
}
