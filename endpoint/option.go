package endpoint

import (
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Option sets something of one message that is sent, published or replied.
type Option = pipeline.Option

// To sends to the queue of that name, whatever the routes say.
func To(queue string) Option {
	return func(out *pipeline.Outgoing) { out.Queue = queue }
}

// ToThisInstance sends to the queue of this very process, which [Config.InstanceQueue] gives it,
// whatever the routes say.
func ToThisInstance() Option { return To(thisInstance) }

// thisInstance stands for the instance's queue until the endpoint is known. No queue has that name.
const thisInstance = "\x00"

// After delivers the message no earlier than d from now. Not for publishing.
func After(d time.Duration) Option {
	return func(out *pipeline.Outgoing) { out.After = d }
}

// At delivers the message no earlier than t. Not for publishing.
func At(t time.Time) Option {
	return func(out *pipeline.Outgoing) { out.At = t }
}

// ExpireAfter discards the message when nobody has received it d after it was sent, or
// after it was due.
func ExpireAfter(d time.Duration) Option {
	return func(out *pipeline.Outgoing) { out.TTL = d }
}

// ReplyTo has replies sent to the queue of that name instead of the endpoint's own.
func ReplyTo(queue string) Option {
	return func(out *pipeline.Outgoing) { out.ReplyTo = queue }
}

// ReplyToThisInstance has replies sent to the queue of this very process, which
// [Config.InstanceQueue] gives it: for what waits in the process's memory.
func ReplyToThisInstance() Option { return ReplyTo(thisInstance) }

// Header adds a header.
func Header(name, value string) Option {
	return func(out *pipeline.Outgoing) { out.Headers.Set(name, value) }
}

// Headers adds headers; h is not kept.
func Headers(h header.Map) Option {
	return func(out *pipeline.Outgoing) {
		for name, value := range h.All() {
			out.Headers.Set(name, value)
		}
	}
}

// StartNewConversation gives the message a conversation id of its own, where it would have that of
// the message being handled, which goes into the header PreviousConversationId. Followed by a
// [Header] that sets the conversation id, it is of the caller's choosing.
func StartNewConversation() Option {
	return func(out *pipeline.Outgoing) {
		out.Headers.Set(header.ConversationID, uuid.New(time.Now()))
		if out.Incoming == nil {
			return
		}
		if previous := out.Incoming.Headers.Get(header.ConversationID); previous != "" {
			out.Headers.Set(header.PreviousConversation, previous)
		}
	}
}

// MessageID gives the message an identity of the caller's choosing, for receivers
// that recognise duplicates by it.
func MessageID(id string) Option {
	return func(out *pipeline.Outgoing) { out.MessageID = id }
}

// Immediately sends at once, also when the handler fails afterwards, instead of
// together with the handler's other messages.
func Immediately() Option {
	return func(out *pipeline.Outgoing) { out.Immediately = true }
}

// ReceiptIn stores the receipt of a message, for [Endpoint.Cancel]. It is there
// when Send returns, so within a handler it goes with [Immediately] only.
func ReceiptIn(r *transport.Receipt) Option {
	return func(out *pipeline.Outgoing) { out.Receipt = r }
}
