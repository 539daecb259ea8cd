package endpoint

import (
	"time"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// Option sets something of one message that is sent, published or replied.
type Option = pipeline.Option

// To sends to the queue of that name, whatever the routes say.
func To(queue string) Option {
	return func(out *pipeline.Outgoing) { out.Queue = queue }
}

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

// Header adds a header.
func Header(name, value string) Option {
	return func(out *pipeline.Outgoing) { out.Headers.Set(name, value) }
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
