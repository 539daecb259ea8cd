// Package transport is the seam between an endpoint and a message broker. Users
// pick a driver, a subpackage; this package is for those who write one.
//
// # What a driver does
//
// A driver receives, settles and dispatches; nothing else. How many messages are
// handled at once, how long one may take, what happens when a handler fails, how
// fast to try again: all that is above the seam and the same for every broker.
// A driver does not log what it returns as an error.
//
// It must
//   - implement [Transport], [Conn], [Receiver] and [Delivery] with every method
//     safe for concurrent use, but for what a comment excepts;
//   - do no I/O before [Transport.Open], and leave no goroutine behind after
//     [Conn.Close];
//   - own its connection: redial by itself, with a pause that grows and is
//     jittered. While the broker is away, Receive, Dispatch and the settling
//     methods return errors; afterwards they work again on the same values;
//   - never let a settle of an older connection or an expired lease hit a newer
//     hand-out of the message: such a settle fails with [ErrLeaseLost];
//   - hand out what it cannot decode as a delivery whose Message.Undecodable is set,
//     so that the endpoint can move it to the error queue;
//   - return [ErrNoQueue] for an operation whose destination does not exist or takes
//     no messages, and [*TooLargeError] for one over the broker's limits;
//   - keep operations apart: one that the broker refuses never fails its neighbours
//     in a batch.
//
// It should
//   - send the operations of one Dispatch to each destination in their order;
//   - count hand-outs exactly where the broker can, across instances and crashes;
//   - collect what many goroutines settle and send at once into few requests, with no
//     wait of more than 5 ms for company.
//
// It may implement the optional interfaces of this package. The endpoint finds
// them by type assertion when it starts; what a broker lacks shows then, not when
// the first message needs it.
package transport

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Transport is a broker that can be connected to. It holds configuration only: a
// Transport is a struct of data, may be copied before use, and may be opened several times.
type Transport interface {
	// Open connects. It returns an error when the broker refuses or does not
	// answer before ctx ends; ctx bounds the opening only, not the Conn.
	Open(ctx context.Context, env Env) (Conn, error)
}

// Describer is implemented by a Transport that knows the name of its broker. Without it telemetry uses the name of the
// driver's package.
type Describer interface {
	// System returns the broker's name in OpenTelemetry's conventions for messaging.system or db.system.name, such as
	// "rabbitmq". It does no I/O.
	System() string
}

// Env is what a driver is told about the program it works for.
type Env struct {
	// Logger takes what has no error to be returned in, such as a lost connection.
	// Never nil when the endpoint opens a driver. Drivers use [Env.Log].
	Logger *slog.Logger
	// Endpoint is the endpoint's name; connections and leases carry it.
	Endpoint string
	// Instance tells this process from others of the same endpoint.
	Instance string
	// Shared is for what the driver's connections in this process can have in common: see [Share]. nil: nothing.
	Shared *Shared
}

// Log is Logger, or one that discards where that is nil.
func (e Env) Log() *slog.Logger {
	if e.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return e.Logger
}

// Conn is an open transport, safe for concurrent use.
type Conn interface {
	// Dispatch hands messages to the broker and returns when it has accepted
	// them: nil means every one is safe there. Otherwise the error is a
	// [*DispatchError] that tells which operations failed and why; the rest were
	// accepted. An operation failed by [ErrOutcomeUnknown] may have been accepted.
	//
	// receipts has one entry per operation, or is nil when no operation has one.
	// The driver keeps neither ops nor what they point to after it returns, and
	// changes none of it.
	Dispatch(ctx context.Context, ops []Operation) (receipts []Receipt, err error)

	// OpenReceiver starts receiving from a queue. It fails with [ErrNoQueue] when
	// there is no such queue.
	OpenReceiver(ctx context.Context, opts ReceiverOptions) (Receiver, error)

	// Limits says what the endpoint has to respect. It does not change while
	// the Conn is open.
	Limits() Limits

	// Close ends the connection and everything opened from it; deliveries not
	// settled return to their queue, at once where the broker allows. It waits for
	// the driver's goroutines. A second Close does nothing.
	Close() error
}

// ReceiverOptions say what to receive from.
type ReceiverOptions struct {
	// Queue is the name as the endpoint knows it. Required.
	Queue string
	// CompletesFirst says that deliveries are completed before they are handled. One whose completion came too
	// late was not handled then: a driver that recognises what comes again must not take it for done.
	CompletesFirst bool
}

// Receiver takes messages from one queue.
type Receiver interface {
	// Receive blocks until there is at least one message and returns 1 to limit
	// of them; limit is at least 1. Up to Limits.ParallelReceive calls run at once.
	//
	// When ctx ends it returns ctx's error; what it had taken by then it returns with
	// a nil error or gives back, never drops. Any other error means that the broker
	// cannot be received from at the moment: the caller waits and calls again.
	Receive(ctx context.Context, limit int) ([]Delivery, error)

	// Window bounds how many deliveries may be out unsettled, those prefetched by the
	// driver included. The pump calls it before the first Receive and when concurrency
	// changes. A driver that holds nothing beyond what Receive returned ignores it.
	Window(n int)

	// Close stops receiving. Deliveries already returned may still be settled;
	// what was prefetched goes back to the queue.
	Close() error
}

// Delivery is one hand-out of a message. It is settled once, from any goroutine,
// by one of Complete, Retry and Release (or a verb of an optional interface). A
// settle that failed may be repeated with the same verb, but never after
// [ErrLeaseLost], which says that the message is no longer ours.
//
// Also one whose lease is lost is given up, so that a driver can forget it: by Retry when its handler had begun, else by
// Release. Neither may touch a newer hand-out, and both fail with [ErrLeaseLost] where the message is no longer ours.
//
// Settling takes its own context: it goes on when the endpoint is stopping.
type Delivery interface {
	// Message is what was received. The endpoint may read it until the delivery
	// is settled and after; it changes neither headers nor body.
	Message() *Message
	// Attempt says how often the message was handed out, this time included.
	Attempt() Attempt
	// Complete removes the message from the queue. It returns when the broker
	// has answered; where the protocol has no answer (AMQP 0-9-1), when the
	// request has been handed to the socket.
	Complete(ctx context.Context) error
	// Retry makes the message available again now, as a failed attempt.
	Retry(ctx context.Context) error
	// Release returns the message untouched. It does not count as an attempt
	// where the broker can help it (Limits.FreeRelease).
	Release(ctx context.Context) error
}

// Attempt counts the hand-outs of a message in its queue: not the runs of a
// handler. Copies, such as a delayed retry, start again at 1.
type Attempt struct {
	// N is 1 on the first hand-out.
	N int
	// Exact is true where the broker counts, whatever the number of instances and
	// crashes. Otherwise N is a lower bound.
	Exact bool
}

// Message is what travels. Who made it owns it until it is given away; afterwards
// nobody changes it.
type Message struct {
	// ID is the message's identity: the same over retries, delays and copies.
	ID string
	// NativeID is the broker's own id of this message, if it has one; of received
	// messages, and of copies that the endpoint makes of those. It is not sent.
	NativeID string
	Headers  header.Map
	Body     []byte
	// Native are the broker's properties of a received message, under the
	// broker's names; of a copy, those of the message that was received. A driver sends the
	// properties of the producer again with a copy, such as a session or a message group, and
	// leaves out those that say how this delivery came. [Operation].Properties win. A property
	// that the broker refuses is left out: it never fails the copy. Often nil.
	Native map[string]string
	// Undecodable says why the driver could not read a received message. Headers and
	// Body then hold what it could save.
	Undecodable error
}

// Operation is one message to send: to a queue, or published to the
// subscribers of its types.
type Operation struct {
	Message *Message
	// Queue is the destination of a send; empty for a publish.
	Queue string
	// Types are the wire names of a published message, most concrete first.
	// Who subscribed to several of them gets one copy.
	Types []string
	// After delays the delivery; At is the moment it is due, and wins over
	// After. One in the past is no delay. Drivers whose Limits.MaxDelay is 0 are
	// never given either.
	After time.Duration
	At    time.Time
	// TTL discards the message when nobody has received it that long after it was due: after
	// it was sent where it is not delayed. 0 keeps it.
	TTL time.Duration
	// Properties are for the driver, under names that it documents. Often nil.
	Properties map[string]string
	// Receipt asks for a [Receipt] of a delayed message. Without it a driver may return none, where sending is
	// cheaper so.
	Receipt bool
}

// Delay is how long after now the operation is due: 0 or more.
func (o *Operation) Delay(now time.Time) time.Duration {
	if !o.At.IsZero() {
		return max(0, o.At.Sub(now))
	}
	return max(0, o.After)
}

// Receipt is what a driver returns for an accepted operation.
type Receipt struct {
	// Cancel is the handle for [Canceler]. Empty where the message cannot be
	// called back.
	Cancel string
}

// Limits are a broker's bounds; the zero value of a field means no bound unless
// it says otherwise.
type Limits struct {
	// MaxBody and MaxHeaders are in bytes.
	MaxBody    int
	MaxHeaders int
	// MaxDelay is the longest delay of an Operation. 0: delays are not offered;
	// Unlimited: no bound.
	MaxDelay time.Duration
	// Lease is how long a delivery stays ours without being renewed. 0: for as
	// long as the connection lasts. A driver with leases implements [Renewer].
	Lease time.Duration
	// MaxHold is how long a delivery may be kept at all, renewed or not; then the broker takes it
	// back. 0: without bound.
	MaxHold time.Duration
	// MaxReceive is the most that one Receive returns; the pump asks for no more.
	MaxReceive int
	// ParallelReceive is how many Receive calls may run at once; 0 means 1.
	ParallelReceive int
	// Prefetch is true when the driver holds messages ahead of Receive, bounded
	// by Window. The pump then keeps no buffer of its own.
	Prefetch bool
	// Unbuffered is true where each hand-out counts, and the broker is asked, and paid, by the request. The pump then
	// receives no message that no handler is free for, and asks with several calls at once only for MaxReceive
	// each.
	Unbuffered bool
	// FreeRelease is true when Release does not raise the attempt count.
	FreeRelease bool
	// Atomic is true when the deliveries implement [Transactor].
	Atomic bool
}

// Unlimited is a MaxDelay without a bound.
const Unlimited time.Duration = 1<<63 - 1
