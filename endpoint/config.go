package endpoint

import (
	"cmp"
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

// Config is the configuration of an endpoint. Only Name and Transport are required; a zero field is its default. New
// copies it.
type Config struct {
	// Name is the endpoint's name and the name of its queue. All instances of an endpoint share both.
	Name string
	// Transport is the broker to use.
	Transport transport.Transport
	// Messages are the types that are sent, published or handled, with their names in headers.
	Messages []Message
	// Handlers are called for each message of their type, in this order.
	Handlers []Handler
	// Routes are queues of commands, for messages that are registered without [Message.To]. A type with two different
	// queues is an error of New.
	Routes []Route
	// Concurrency is how many messages are handled at once, at most 65,536. Default: twice the number of CPUs. With 1,
	// messages are handled one after the other, and so are their own messages sent.
	Concurrency int
	// MaxBufferedBytes bounds the memory of received messages, in bytes: the headers and bodies of all deliveries that
	// are received and not settled, over all queues of the endpoint. Default: 256 MiB. Near the bound the endpoint
	// receives fewer messages, down to one at a time. A message above the bound is received alone and never refused.
	MaxBufferedBytes int64
	// Recoverability is the configuration of retries and error queues.
	Recoverability recoverability.Config
	// AuditQueue receives a copy of every processed message: its body and headers as they were received, and headers
	// with the time and place of processing. Default: no copies. The copy is sent with the message's completion, and
	// the message fails where it cannot be sent. Behaviors do not see it.
	AuditQueue string
	// AuditExpireAfter discards copies that were not received for so long. Default: never.
	AuditExpireAfter time.Duration
	// Transactions is the unit of receiving and sending. Default: [ReceiveOnly].
	Transactions TransactionMode
	// Pipeline holds the endpoint's behaviors.
	Pipeline pipeline.Pipeline
	// Serializers write and read bodies. Default: [serialization.JSON] alone. The first writes all messages. A received
	// message is read by the serializer of its content type, or by the first where it names none. It goes to the error
	// queue without a retry where there is no serializer for it.
	Serializers []serialization.Serializer
	// SendOnly endpoints have no queue: they have no handlers and receive nothing.
	SendOnly bool
	// Install creates missing queues at the start of Run. Without it they have to exist: [Endpoint.Install] creates
	// them. Where the transport can, Run verifies the queues that the configuration names, the error and audit queues
	// included; not those of routes and of a Policy.
	Install bool
	// StopTimeout is how long handlers may go on after Run's context has ended, before their context is cancelled.
	// Default: 30 s. [None] is no limit. Where releasing a message counts as an attempt, handlers for the messages
	// received so far begin in the first half of it.
	StopTimeout time.Duration
	// HandlerTimeout is how long one call of a handler may take. Default: no limit. After it the handler's context is
	// cancelled with cause [ErrHandlerTimeout], and an error that the handler returns is an ordinary failure. A handler
	// that returns nil has succeeded nevertheless, and one that ignores its context goes on.
	HandlerTimeout time.Duration
	// Notify functions are called in this order with each [Notification]. They may end the context of Run. Many
	// goroutines call them at once. After 10 s their context ends, and the endpoint goes on without the functions that
	// have not returned.
	Notify []func(ctx context.Context, n Notification)
	// OnFinalFailure is called for a message before it is moved to an error queue, dead-lettered or discarded. Default:
	// no call. Its messages are sent in one unit with that where the transport can, and its writes in the session's
	// transaction are committed with a move or a discard. It may be called several times for a message, but only the
	// messages of the call that succeeded are sent: where the broker does not answer, or the transaction lost a
	// conflict, the message stays until its next attempt. Any other error, and a panic, is logged; the message is then
	// moved, dead-lettered or discarded without the messages and writes of the call.
	OnFinalFailure func(ctx context.Context, s *Session, f recoverability.Failure) error
	// Logger receives the endpoint's log. Default: [slog.Default].
	Logger *slog.Logger
	// Instance distinguishes this process from others with the same Name, in leases and logs. Default: machine and
	// process id.
	Instance string
	// InstanceQueue adds a queue of this process, with the name "Name-Instance", for [ToThisInstance] and
	// [ReplyToThisInstance]. It has a Concurrency of its own. Instance is then required, and has to be the same after a
	// restart, so that the process finds the messages in its queue again.
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

// instanceQueue returns the name of this process's own queue, or "".
func (c *Config) instanceQueue() string {
	if !c.InstanceQueue {
		return ""
	}
	return c.Name + "-" + c.Instance
}

// maxConcurrency is a sanity bound: prefetch windows and buffers are multiples of the concurrency.
const maxConcurrency = 1 << 16

func (c Config) withDefaults() Config {
	c.Concurrency = cmp.Or(c.Concurrency, 2*runtime.GOMAXPROCS(0))
	if len(c.Serializers) == 0 {
		c.Serializers = []serialization.Serializer{serialization.JSON}
	}
	c.Serializers = slices.Clone(c.Serializers)
	c.Notify = slices.Clone(c.Notify)
	c.StopTimeout = cmp.Or(c.StopTimeout, 30*time.Second)
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
	name, _ := os.Hostname() // "" after an error
	return cmp.Or(name, "unknown")
}
