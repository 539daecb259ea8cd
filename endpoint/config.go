package endpoint

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// Config says what an endpoint is. Only Name and Transport are required. New
// copies it: changing it afterwards changes nothing.
type Config struct {
	// Name is the endpoint's name and the name of its queue. All instances of an
	// endpoint share both.
	Name string
	// Transport is the broker to use.
	Transport transport.Transport
	// Messages are the types that are sent, published or handled, with their names
	// on the wire.
	Messages []Message
	// Handlers are called for each message of their type, in this order.
	Handlers []Handler
	// Routes are queues of commands, for messages that are registered without [Message.To]. A type with two
	// different queues is an error of New.
	Routes []Route
	// Concurrency is how many messages are handled at once: twice the number of
	// CPUs unless set, and at most 65,536. With 1, messages are handled, and what they send leaves,
	// strictly one after the other.
	Concurrency int
	// MaxBufferedBytes bounds the memory of received messages: the headers and bodies of all deliveries that the endpoint
	// has received and not settled, over all its queues. 256 MiB unless set; in bytes. Where there is no room the endpoint
	// receives fewer messages, down to one at a time. It never refuses a message: one that is larger than the bound is received alone.
	MaxBufferedBytes int64
	// Recoverability says what happens to messages that fail.
	Recoverability recoverability.Config
	// AuditQueue, when set, gets a copy of every message that was processed, with its body
	// and headers as they were received, and headers that tell when and where that was. The copy
	// is sent with the message's completion, like what handlers send: without it the message
	// fails. Behaviors do not see it.
	AuditQueue string
	// AuditExpireAfter discards the copies that nobody has received for so long: never unless
	// set.
	AuditExpireAfter time.Duration
	// Transactions is how receiving and sending belong together: [ReceiveOnly] unless set.
	Transactions TransactionMode
	// Pipeline holds the endpoint's behaviors.
	Pipeline pipeline.Pipeline
	// Serializers write and read bodies: [serialization.JSON] alone unless set. The first writes
	// all that is sent; a received message is read by the one of its content type, by the
	// first when it names none, and fails for good when there is none for it.
	Serializers []serialization.Serializer
	// SendOnly endpoints have no queue: they have no handlers and receive nothing.
	SendOnly bool
	// Install creates missing queues at the start of Run. Without it they must
	// be there: [Endpoint.Install] makes them. Run looks for all that the configuration names,
	// the error and audit queues too, where the transport can look; not for those of Routes
	// and of a policy.
	Install bool
	// StopTimeout is how long handlers may go on after Run's context has ended, before their context is cancelled.
	// Default: 30 s. [None] is no limit. Where releasing a message counts as an attempt, handlers for the messages
	// received so far begin in the first half of it.
	StopTimeout time.Duration
	// HandlerTimeout is how long one call of a handler may take: its context is then cancelled with
	// cause [ErrHandlerTimeout], and the error that it returns is a failure like any other. A
	// handler that returns nil all the same has succeeded, and one that does not heed its
	// context goes on. No limit unless set.
	HandlerTimeout time.Duration
	// Notify are told, in this order, what was done about failed messages, and what the endpoint
	// cannot help by itself: see [Notification]. They may end the context of Run. They are called by
	// many goroutines at once, each within 10 s: then their context ends, and the endpoint goes on
	// without those that have not returned.
	Notify []func(ctx context.Context, n Notification)
	// OnFinalFailure, when set, is called for a message that is given up: about to be moved to an error
	// queue, dead-lettered or discarded. What it sends, replies or publishes leaves in
	// one unit with that where the transport can, and writes in the session's transaction go
	// with a move or a discard. It may be called more than once for a message, though only what was
	// sent by the call that succeeded leaves: where the broker does not answer, or the transaction lost a
	// conflict, the message stays until its next attempt. Any other error, and a panic, is logged: the message is
	// then dealt with without what it sent and wrote.
	OnFinalFailure func(ctx context.Context, s *Session, f recoverability.Failure) error
	// Logger takes the endpoint's log: [slog.Default] unless set.
	Logger *slog.Logger
	// Instance tells this process from others with the same Name, in leases and
	// log: machine and process id unless set.
	Instance string
	// InstanceQueue gives this process a queue of its own, called "Name-Instance", beside the one
	// it shares: for [ToThisInstance] and [ReplyToThisInstance]. It is received from with a
	// Concurrency of its own. Instance must be set, to something that is the same after a
	// restart, so that what waits in the queue is found again.
	InstanceQueue bool
}

// None is "no such thing" in the fields of [Config], where zero is the default: no StopTimeout, and no transaction.
const None = -1

// TransactionMode is the unit of receiving a message and of sending the messages of its handlers. [None] completes the
// message before it is handled: at most once, without retries.
type TransactionMode int

const (
	// ReceiveOnly handles every message at least once, and sends the messages of its handlers before it is completed:
	// after a crash between the two, they are sent again. Where the transport can, both happen as one.
	ReceiveOnly TransactionMode = iota
	// SendsAtomicWithReceive lets handlers write to the transport's database in the same transaction as completing the
	// message and sending. SQL transports offer it.
	SendsAtomicWithReceive
)

// String returns the name of the mode.
func (m TransactionMode) String() string {
	switch m {
	case ReceiveOnly:
		return "ReceiveOnly"
	case None:
		return "None"
	case SendsAtomicWithReceive:
		return "SendsAtomicWithReceive"
	}
	return fmt.Sprintf("TransactionMode(%d)", int(m))
}

// instanceQueue is the name of this process's own queue, or "".
func (c *Config) instanceQueue() string {
	if !c.InstanceQueue {
		return ""
	}
	return c.Name + "-" + c.Instance
}

// maxConcurrency is far above what a process can handle at once. Windows and buffers are multiples of the concurrency.
const maxConcurrency = 1 << 16

const defaultStopTimeout = 30 * time.Second

func (c Config) withDefaults() Config {
	if c.Concurrency == 0 {
		c.Concurrency = 2 * runtime.GOMAXPROCS(0)
	}
	if len(c.Serializers) == 0 {
		c.Serializers = []serialization.Serializer{serialization.JSON}
	}
	c.Serializers = slices.Clone(c.Serializers)
	c.Notify = slices.Clone(c.Notify)
	if c.StopTimeout == 0 {
		c.StopTimeout = defaultStopTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Instance == "" {
		c.Instance = fmt.Sprintf("%s-%d", machineName(), os.Getpid())
	}
	c.Recoverability.Unrecoverable = slices.Clone(c.Recoverability.Unrecoverable)
	c.Recoverability.Rules = slices.Clone(c.Recoverability.Rules)
	return c
}

func machineName() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}
