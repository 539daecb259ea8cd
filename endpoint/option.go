package endpoint

import (
	"fmt"
	"reflect"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// SendOption is an option of Send and SendLocal.
type SendOption = pipeline.SendOption

// PublishOption is an option of Publish.
type PublishOption = pipeline.PublishOption

// ReplyOption is an option of Reply.
type ReplyOption = pipeline.ReplyOption

// Option is an option of every call that sends a message.
type Option interface {
	SendOption
	PublishOption
	ReplyOption
}

// DirectOption is an option of the calls that send to one queue, at once or later.
type DirectOption interface {
	SendOption
	ReplyOption
}

// TxOption is an option of the calls that are possible outside a handler.
type TxOption interface {
	SendOption
	PublishOption
}

// option implements them all. The functions below return the interface of the calls that it fits.
type option func(out *pipeline.Outgoing)

func (o option) ApplySend(out *pipeline.Outgoing)    { o(out) }
func (o option) ApplyPublish(out *pipeline.Outgoing) { o(out) }
func (o option) ApplyReply(out *pipeline.Outgoing)   { o(out) }

// OutgoingOption makes an option of a function that changes the message before the Outgoing stage.
// It is for options of drivers and of other packages, such as one of
// [pipeline.Outgoing].Properties. Fields that do not fit, such as a Queue of a published message,
// are an error of the call.
func OutgoingOption(f func(out *pipeline.Outgoing)) Option { return option(f) }

// To sends to the queue of that name, whatever the routes say.
func To(queue string) DirectOption { return option(func(out *pipeline.Outgoing) { out.Queue = queue }) }

// ToThisInstance sends to the queue of this process, of [Config.InstanceQueue], whatever the routes
// say.
func ToThisInstance() DirectOption { return To(thisInstance) }

// thisInstance stands for the instance's queue until the endpoint is known. No queue has that name.
const thisInstance = "\x00"

// After delivers the message no earlier than d from now.
func After(d time.Duration) DirectOption {
	return option(func(out *pipeline.Outgoing) { out.After = d })
}

// At delivers the message no earlier than t.
func At(t time.Time) DirectOption { return option(func(out *pipeline.Outgoing) { out.At = t }) }

// TimerName makes a delayed message a timer with a name: it replaces the timer of the endpoint with
// that name that waits, and [Session.CancelTimer] or [Endpoint.CancelTimer] removes it until it is
// due. In a handler all of that happens with the commit of its message, and not at all where the
// handler fails. Timers need [Config].Outbox, in whose database they wait, or
// [SendsAtomicWithReceive] on a SQL transport. The delay may be longer than the broker's longest.
//
// The name is any valid UTF-8 of 1 to 500 bytes. All instances of the endpoint share the names;
// other endpoints have their own. A timer is not part of a Recover stage or
// [Config].OnFinalFailure, and has no receipt.
func TimerName(name string) SendOption {
	return option(func(out *pipeline.Outgoing) { out.Timer = timer.Name{Name: name}.Text() })
}

// ReceiptIn stores the receipt of a delayed message in r, for [Endpoint.Cancel], before Send
// returns. In a handler it needs [Immediately].
func ReceiptIn(r *transport.Receipt) DirectOption {
	return option(func(out *pipeline.Outgoing) { out.Receipt = r })
}

// ExpireAfter discards the message when it has not been received d after it was sent, or after it
// was due.
func ExpireAfter(d time.Duration) Option { return option(func(out *pipeline.Outgoing) { out.TTL = d }) }

// ReplyTo has replies sent to the queue of that name instead of the endpoint's own.
func ReplyTo(queue string) Option {
	return option(func(out *pipeline.Outgoing) { out.ReplyTo = queue })
}

// ReplyToThisInstance has replies sent to the queue of this process, of [Config.InstanceQueue]: for
// a request that waits in the memory of the process.
func ReplyToThisInstance() Option { return ReplyTo(thisInstance) }

// Header sets a header. Headers that describe the body of the message and how it is sent, such as
// its type, id and time, have the endpoint's values nevertheless: see [header.KindSending]. The
// name of a header that describes one received message, such as a count of its retries, is an error
// of the call that wraps [ErrReceiptHeader].
func Header(name, value string) Option {
	return option(func(out *pipeline.Outgoing) {
		out.Headers.Set(name, value)
		if out.Err == nil && header.KindOf(name).OfReceipt() {
			out.Err = fmt.Errorf("Header(%q): %w", name, ErrReceiptHeader)
		}
	})
}

// Headers sets headers, such as all those of a received message: see [Session.Headers]. h is not
// kept. Headers that describe another message, its body, its sending or its receipt, are left out:
// see [header.Kind].
func Headers(h header.Map) Option {
	return option(func(out *pipeline.Outgoing) {
		for name, value := range h.All() {
			if header.KindOf(name) == header.KindOther {
				out.Headers.Set(name, value)
			}
		}
	})
}

// StartNewConversation gives the message a new conversation id in place of the id of the message
// being handled, which the header PreviousConversationId keeps. A [Header] that follows may set
// another conversation id.
func StartNewConversation() Option {
	return option(func(out *pipeline.Outgoing) {
		out.Headers.Set(header.ConversationID, uuid.New(time.Now()))
		if out.Incoming != nil && out.Incoming.Headers.Get(header.ConversationID) != "" {
			out.Headers.Set(header.PreviousConversation, out.Incoming.Headers.Get(header.ConversationID))
		}
	})
}

// MessageID gives the message an identity of the caller's choosing, for receivers that recognise
// duplicates by it.
func MessageID(id string) Option { return option(func(out *pipeline.Outgoing) { out.MessageID = id }) }

// Immediately sends the message at once and not with the handler's other messages, so it is sent
// even where the handler fails afterwards.
func Immediately() Option { return option(func(out *pipeline.Outgoing) { out.Immediately = true }) }

// ViaOutbox stores the message in the outbox of the endpoint, from which it is sent to the broker:
// so that sending succeeds while the broker is away. It is for the methods of an [Endpoint] with
// [Config].Outbox. There is no receipt.
func ViaOutbox() TxOption { return option(func(out *pipeline.Outgoing) { out.ViaOutbox = true }) }

// In sends or publishes in tx, a transaction that the caller has begun in the database of
// [Config].Outbox or, without one, of the transport, as a web request does, and ends itself: the
// message is sent when tx is committed, together with the other writes in it, and never when it is
// rolled back. It is for the methods of an [Endpoint]; the messages of a handler are sent with the
// message that it handles.
//
// The database's transport defines the type of tx: a pgx.Tx or a *sql.Tx for postgres.Transport, a
// *sql.Tx on the same file for sqlite.Transport, a *sql.Tx for sqlserver.Transport. Other
// transports have no such transactions, and sending fails. Send uses tx and does not keep it;
// nothing else may use it meanwhile. After an error of Send, roll tx back: the database may have
// ended it. A receipt is valid when tx has been committed; after a rollback it must not be used.
// With an outbox there is no receipt.
func In(tx any) TxOption {
	if v := reflect.ValueOf(tx); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		tx = noTx{}
	}
	return option(func(out *pipeline.Outgoing) { out.Tx = tx })
}

// noTx stands for a nil transaction, which is an error, where a nil Outgoing.Tx is no transaction.
type noTx struct{}
