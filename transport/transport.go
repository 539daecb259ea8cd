// Package transport is the interface between an endpoint and a message broker. Users pick a driver,
// a subpackage; this package is for authors of drivers.
//
// # Drivers
//
// A driver receives, settles and dispatches; nothing else. The number of concurrent handlers,
// timeouts, failures of handlers and pauses between attempts are the endpoint's part and the same
// for every broker. A driver does not log an error that it returns.
//
// It must
//   - implement [Transport], [Conn], [Receiver] and [Delivery] with every method safe for concurrent use, unless a
//     comment excepts it;
//   - do no I/O before [Transport.Open], and leave no goroutine behind after [Conn.Close];
//   - own its connection: redial by itself, with growing, jittered pauses. While the broker is away, Receive, Dispatch
//     and the settling methods return errors; afterwards they work again on the same values;
//   - never let a settle of an older connection or an expired lease affect a newer delivery of the message: such a
//     settle fails with [ErrLeaseLost];
//   - deliver a message that it cannot decode with Message.Undecodable set, so that the endpoint can move it to the
//     error queue;
//   - return [ErrNoQueue] for an operation whose destination does not exist or accepts no messages, and
//     [*TooLargeError] for one over the broker's limits, also if the broker would close the connection over it;
//   - return [ErrContent] for an operation that is refused because of its message, for another reason than a size;
//   - keep operations apart: one that the broker refuses never fails others of the batch.
//
// It should
//   - send the operations of one Dispatch to each destination in their order;
//   - count deliveries exactly where the broker can, across instances and crashes;
//   - collect concurrent settles and sends into few requests, with a linger of at most 5 ms.
//
// It may implement the optional interfaces of this package. The endpoint finds them by type
// assertion when it starts, so that a missing capability is reported then, not when the first
// message needs it.
package transport

import (
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/header"
)

// Transport is the configuration of a driver for a broker. It is a struct of data, may be copied
// before use, and may be opened several times.
type Transport interface {
	// Open connects. It returns an error if the broker refuses or does not answer before ctx ends;
	// ctx bounds the opening only, not the Conn.
	Open(ctx context.Context, env Env) (Conn, error)
}

// Describer is implemented by a Transport that knows the name of its broker. Without it telemetry
// uses the name of the driver's package.
type Describer interface {
	// System returns the broker's name in OpenTelemetry's conventions for messaging.system or
	// db.system.name, such as "rabbitmq". It does no I/O.
	System() string
}

// Env describes the program to a driver.
type Env struct {
	// Logger logs events without an error to return, such as a lost connection. It is never nil
	// when the endpoint opens a driver. Drivers use [Env.Log].
	Logger *slog.Logger
	// Endpoint is the endpoint's name; connections and leases carry it.
	Endpoint string
	// Instance distinguishes this process from others of the same endpoint.
	Instance string
	// Shared has the values that the driver's connections in this process share: see [Share]. nil:
	// none.
	Shared *Shared
	// Remember is how long the ids of handled messages stay in the inboxes of an [OutboxStore]. 0:
	// they are never removed.
	Remember time.Duration
}

// Log returns Logger, or a logger that discards if that is nil.
func (e Env) Log() *slog.Logger {
	if e.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return e.Logger
}

// Conn is an open transport, safe for concurrent use.
type Conn interface {
	// Dispatch sends messages to the broker and returns when it has accepted them. nil means that
	// all are safe there. Otherwise the error is a [*DispatchError] with the failed operations; the
	// others were accepted. An operation that failed with [ErrOutcomeUnknown] may have been
	// accepted.
	//
	// receipts has one entry per operation, or is nil if no operation has one. After it returns,
	// the driver keeps neither ops nor values that they point to, and it changes none of them.
	Dispatch(ctx context.Context, ops []Operation) (receipts []Receipt, err error)

	// OpenReceiver starts receiving from a queue. It fails with [ErrNoQueue] if there is no such
	// queue.
	OpenReceiver(ctx context.Context, opts ReceiverOptions) (Receiver, error)

	// Limits returns the limits of the broker. They do not change while the Conn is open.
	Limits() Limits

	// Close ends the connection and everything that was opened from it. Unsettled deliveries return
	// to their queue, at once where the broker allows. It waits for the driver's goroutines. A
	// second Close does nothing.
	Close() error
}

// ReceiverOptions are the options of [Conn].OpenReceiver.
type ReceiverOptions struct {
	// Queue is the endpoint's name of the queue. Required.
	Queue string
	// CompletesFirst reports whether deliveries are completed before they are handled. A message
	// whose completion failed with ErrLeaseLost was not handled then: a driver that recognizes
	// redelivered messages must not take it for completed.
	CompletesFirst bool
}

// Receiver receives messages from one queue.
type Receiver interface {
	// Receive blocks until there is at least one message and returns 1 to limit of them; limit is
	// at least 1. Up to Limits.ParallelReceive calls run at once.
	//
	// When ctx ends it returns ctx's error. Messages that it has received by then are returned with
	// a nil error, or returned to the queue, and never lost. Any other error means that the broker
	// cannot be received from at the moment: the caller waits and calls again.
	Receive(ctx context.Context, limit int) ([]Delivery, error)

	// Window bounds the number of unsettled deliveries, prefetched ones included. The pump calls it
	// before the first Receive and when concurrency changes. A driver that does not prefetch
	// ignores it.
	Window(n int)

	// Close stops receiving. Deliveries that were returned may still be settled; prefetched ones
	// return to the queue.
	Close() error
}

// Delivery is one delivery of a message. It is settled once, from any goroutine, by one of
// Complete, Retry and Release, or by a method of an optional interface. A settle that failed may be
// repeated with the same method, but never after [ErrLeaseLost], which means that the lease is
// over.
//
// A delivery whose lease is lost is settled too, so that a driver can forget it: by Retry if its
// handler had begun, else by Release. Neither affects a newer delivery, and both fail with
// [ErrLeaseLost] if the lease is over.
//
// Settling takes its own context: it continues while the endpoint stops.
type Delivery interface {
	// Message returns the message. The endpoint may read it until the delivery is settled and
	// after; it changes neither headers nor body.
	Message() *Message
	// Attempt returns the count of the message's deliveries, this one included.
	Attempt() Attempt
	// Complete removes the message from the queue. It returns when the broker has answered or, if
	// the protocol has no answer (AMQP 0-9-1), when the request is written to the socket.
	Complete(ctx context.Context) error
	// Retry makes the message available again now, as a failed attempt.
	Retry(ctx context.Context) error
	// Release returns the message to the queue. It does not count as an attempt if
	// Limits.FreeRelease is set.
	Release(ctx context.Context) error
}

// Attempt counts the deliveries of a message in its queue, not the runs of a handler. Copies, such
// as a delayed retry, start again at 1.
type Attempt struct {
	// N is 1 for the first delivery.
	N int
	// Exact reports whether the broker counts, across instances and crashes. Otherwise N is a lower
	// bound.
	Exact bool
}

// Message is a message. Its creator owns it until it is passed on; afterwards it must not be
// changed.
type Message struct {
	// ID is the message's identity: the same over retries, delays and copies. It is empty, or a
	// [ContentID], if the sender gave the message no id and the broker has none.
	ID string
	// NativeID is the broker's own id of a received message, if it has one, and of copies that the
	// endpoint makes of it. It is not sent.
	NativeID string
	Headers  header.Map
	Body     []byte
	// Native are the broker's properties of a received message, under the broker's names, and of
	// copies of it. With a copy a driver sends the producer's properties again, such as a session
	// or a message group, without those of the delivery. [Operation].Properties override them. A
	// property that the broker refuses is left out: it never fails the copy. Often nil.
	Native map[string]string
	// Undecodable is the error with which the driver failed to decode a received message. Headers
	// and Body then hold the parts that it could decode.
	Undecodable error
}

// Operation is one message to send: to a queue, or published to the subscribers of its types.
type Operation struct {
	Message *Message
	// Queue is the destination of a send; empty for a publish.
	Queue string
	// Types are the wire names of a published message, most concrete first. A subscriber of several
	// of them receives one copy.
	Types []string
	// After delays the delivery. At is the due time, and overrides After. A time in the past is no
	// delay. Drivers whose Limits.MaxDelay is 0 never receive either.
	After time.Duration
	At    time.Time
	// TTL discards the message if it is not received within that time after it was due, or after it
	// was sent if it is not delayed. 0 keeps it.
	TTL time.Duration
	// Properties are options of the driver, under names that it documents. Often nil.
	Properties map[string]string
	// Receipt requests a [Receipt] of a delayed message. Without it a driver may return none if
	// sending is cheaper then.
	Receipt bool
	// Name names a message that waits in a queue with Timers: it replaces the one with the same
	// name that waits there, also one that a receiver has leased. Without a Message, the operation
	// removes that one; none is no error. Names are any text, and are compared bytewise. Only
	// queues with Timers accept operations with a Name.
	Name string
}

// Delay returns the time from now until the operation is due: 0 or more.
func (o *Operation) Delay(now time.Time) time.Duration {
	if !o.At.IsZero() {
		return max(0, o.At.Sub(now))
	}
	return max(0, o.After)
}

// Receipt is a driver's result for an accepted operation.
type Receipt struct {
	// Cancel is the handle for [Canceler]. Empty if the message cannot be cancelled.
	Cancel string
}

// Limits are the limits of a broker. The zero value of a field means no limit unless its comment
// says otherwise.
type Limits struct {
	// MaxBody and MaxHeaders are in bytes.
	MaxBody    int
	MaxHeaders int
	// MaxDelay is the longest delay of an Operation. 0: delays are not offered; Unlimited: no
	// limit.
	MaxDelay time.Duration
	// Lease is how long a delivery is leased without being renewed. 0: as long as the connection
	// lasts. A driver with leases implements [Renewer].
	Lease time.Duration
	// MaxHold is how long a delivery may be unsettled at all, renewed or not; then the broker
	// delivers the message again. 0: no limit.
	MaxHold time.Duration
	// MaxReceive is the maximum number of deliveries of one Receive; the pump requests no more.
	MaxReceive int
	// ParallelReceive is how many Receive calls may run at once; 0 means 1.
	ParallelReceive int
	// Prefetch reports whether the driver prefetches, bounded by Window. The pump then keeps no
	// buffer of its own.
	Prefetch bool
	// Unbuffered reports whether each delivery counts as an attempt and each request costs money.
	// The pump then receives only messages that a handler is free for, and uses concurrent calls
	// only for MaxReceive messages each.
	Unbuffered bool
	// FreeRelease reports whether Release leaves the attempt count unchanged.
	FreeRelease bool
	// Atomic reports whether the deliveries implement [Transactor].
	Atomic bool
}

// Unlimited is a MaxDelay without a limit.
const Unlimited time.Duration = 1<<63 - 1

const (
	contentPrefix = "content:"
	contentDigits = 32
)

// ContentID returns the id that a driver gives a received message without an id, made of a hash of
// what the message contains. All deliveries of the message have the id, and so have all messages
// with the same content. An endpoint therefore takes no message with a content id for a duplicate.
func ContentID(hash [contentDigits / 2]byte) string {
	return contentPrefix + hex.EncodeToString(hash[:])
}

// IsContentID reports whether id has the form of a [ContentID]: "content:" and exactly 32
// hexadecimal digits in lower case.
func IsContentID(id string) bool {
	digits, ok := strings.CutPrefix(id, contentPrefix)
	return ok && len(digits) == contentDigits && strings.Trim(digits, "0123456789abcdef") == ""
}
