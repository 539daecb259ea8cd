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

	"github.com/holdfast-go/holdfast/internal/safelog"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/serialization"
	"github.com/holdfast-go/holdfast/transport"
)

// Config is the configuration of an endpoint. Only Name and Transport are required; a zero field is
// its default. New copies it.
type Config struct {
	// Name is the name of the endpoint and of its queue. All instances of an endpoint share both.
	Name string
	// Transport connects the endpoint to its broker.
	Transport transport.Transport
	// Messages are the message types that the endpoint sends, publishes or handles, with their
	// names in headers.
	Messages []Message
	// Handlers are called for each message of their type, in this order.
	Handlers []Handler
	// Raised are called for the events that handlers raise with [Session.Raise], in this order.
	Raised []Raised
	// Routes name the queues of commands that are registered without [Message.To]. New returns an
	// error if a type has two different queues.
	Routes []Route
	// Concurrency is the maximum number of messages that are handled at the same time, at most
	// 65,536. Default: twice the number of CPUs. With 1, messages are handled one after the other,
	// and their own messages are sent in that order.
	Concurrency int
	// MaxBufferedBytes bounds the memory of received messages, in bytes: the headers and bodies of
	// all deliveries that are received and not settled, in all queues of the endpoint. Default: 256
	// MiB. Near the bound the endpoint receives fewer messages, down to one at a time. A message
	// above the bound is received alone and never refused.
	MaxBufferedBytes int64
	// Recoverability configures retries and error queues.
	Recoverability recoverability.Config
	// AuditQueue receives a copy of every processed message: its body and headers as received, with
	// additional headers for the time and place of processing. Default: no copies. The copy is sent
	// when the message is completed: with the messages of the handlers, or after them, in a request
	// of its own, where the broker cannot send several as a unit. If it cannot be sent, the
	// processing fails. Behaviors do not see it.
	AuditQueue string
	// AuditExpireAfter is the time after which an audit copy that was not received is discarded.
	// Default: never.
	AuditExpireAfter time.Duration
	// Transactions is the mode in which messages are received and sent. Default: [ReceiveOnly].
	Transactions TransactionMode
	// Outbox is the database that handlers write to, where the transport is no database: a
	// transport on PostgreSQL, SQLite or SQL Server. What handlers write in the session's
	// transaction, the messages that they send, and the fact that the message was handled are then
	// committed together. The endpoint moves the messages to the broker afterwards. It keeps them
	// in the queue "Name.outbox" and the ids of handled messages in the table "Name.handled" of the
	// database. [ReceiveOnly] is required. Default: no outbox.
	Outbox transport.Transport
	// OutboxRefusedFor is the time for which the outbox sends a message again that a full queue
	// refuses, from the first refusal on. Then the message moves to the error queue. It does not
	// hold for audit copies. Default: 10 min. [None] moves a message at its third refusal.
	OutboxRefusedFor time.Duration
	// Remember is the time for which the ids of handled messages are kept, so that another delivery
	// of a message is recognized and not handled again. It needs Outbox or
	// [SendsAtomicWithReceive]. Default: 7 days with Outbox; no ids with SendsAtomicWithReceive. At
	// least 24 h, as delayed retries may begin until then; [None] keeps no ids.
	Remember time.Duration
	// Pipeline contains the endpoint's behaviors.
	Pipeline pipeline.Pipeline
	// Serializers encode and decode bodies. Default: [serialization.JSON] alone. The first encodes
	// all messages. A received message is decoded by the serializer for its content type, or by the
	// first if the message has no content type. If no serializer has that content type, the message
	// is moved to the error queue without a retry.
	Serializers []serialization.Serializer
	// SendOnly makes an endpoint that only sends: it has no queue and no handlers, and receives
	// nothing.
	SendOnly bool
	// Install creates missing queues when Run starts. Without it they must exist:
	// [Endpoint.Install] creates them. If the transport can inspect queues, Run verifies that those
	// in the configuration exist, including the error and audit queues, but not those of routes and
	// of a Policy.
	Install bool
	// StopTimeout is the time that handlers have to finish after Run's context has ended. Then
	// their context is cancelled. Default: 30 s. [None] is no limit. If releasing a message counts
	// as an attempt, handlers for the messages received so far begin in the first half of
	// StopTimeout.
	StopTimeout time.Duration
	// HandlerTimeout is the time limit of one call of a handler, unless the message has a policy
	// with a Timeout or [Message.Timeout], which limit all its handlers together. Default: no
	// limit. After it the handler's context is cancelled with cause [ErrHandlerTimeout]. An error
	// that the handler then returns is an ordinary failure, and nil is a success. A handler that
	// ignores its context continues to run.
	HandlerTimeout time.Duration
	// Notify functions are called with each [recoverability.Notification], in this order and by
	// many goroutines at once. They may cancel the context of Run. After 10 s their own context
	// ends, and the endpoint continues without those that have not returned.
	Notify []func(ctx context.Context, n recoverability.Notification)
	// Background functions run while the endpoint does: Run calls each one once, in a goroutine of
	// its own, when the endpoint is ready. Their context ends after the last handler has returned,
	// and Run returns after they have. What they store in the outbox until then is sent as what
	// handlers store. A function may return earlier. A panic is logged.
	Background []func(ctx context.Context, e *Endpoint)
	// OnFinalFailure is called before a message is moved to an error queue, dead-lettered or
	// discarded. Default: no call. Its messages are sent atomically with that action if the
	// transport can, and its writes in the session's transaction are committed with a move or a
	// discard. It may be called several times for one message: if the broker does not answer, or
	// the transaction fails with a conflict, the message stays until its next attempt. Only the
	// messages of the successful call are sent. Any other error, or a panic, is logged; the message
	// is then moved, dead-lettered or discarded without the messages and writes of the call.
	OnFinalFailure func(ctx context.Context, s *Session, f recoverability.Failure) error
	// Logger receives the endpoint's log records. If its handler panics, the record is lost, and
	// the first panic is reported on standard error. If a call of its handler takes more than 10 s,
	// records are lost until the call returns, and [Health].Warnings has their number. Default:
	// [slog.Default].
	Logger *slog.Logger
	// Instance distinguishes this process from others with the same Name, in leases and logs.
	// Default: machine name and process id.
	Instance string
	// Host names the place where the endpoint runs, in the headers of its messages and in
	// ServicePulse. Default: the name of the machine, with an id that is derived from it and from
	// Name.
	Host Host
	// InstanceQueue adds a queue for this process, named "Name-Instance", for [ToThisInstance] and
	// [ReplyToThisInstance]. The queue has a Concurrency of its own. Instance is then required, and
	// must be the same after a restart, so that the process receives the messages that are still in
	// its queue.
	InstanceQueue bool
}

// None turns off a field of [Config] whose zero is a default: there is no StopTimeout, no
// transaction, no record of handled messages, or no time for messages that full queues refuse.
const None = -1

const (
	// defaultRemember is Config.Remember of an endpoint with an outbox, as in NServiceBus.
	defaultRemember = 7 * 24 * time.Hour
	// defaultRefusedFor is Config.OutboxRefusedFor of an endpoint with an outbox.
	defaultRefusedFor = 10 * time.Minute
	// minRemember is the time after the first failure in which delayed retries may begin.
	minRemember = 24 * time.Hour
)

// TransactionMode selects how receiving a message and sending the messages of its handlers are
// combined. [None] completes the message before it is handled: it is handled at most once, without
// retries.
type TransactionMode int

const (
	// ReceiveOnly handles every message at least once, and sends the messages of its handlers
	// before it is completed: after a crash between the two, they are sent again. If the transport
	// can, both are atomic.
	ReceiveOnly TransactionMode = iota
	// SendsAtomicWithReceive lets handlers write to the transport's database in the same
	// transaction as completing the message and sending. SQL transports offer it.
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
	c.Background = slices.Clone(c.Background)
	c.Raised = slices.Clone(c.Raised)
	c.StopTimeout = cmp.Or(c.StopTimeout, 30*time.Second)
	if c.Outbox != nil {
		c.Remember = cmp.Or(c.Remember, defaultRemember)
		c.OutboxRefusedFor = cmp.Or(c.OutboxRefusedFor, defaultRefusedFor)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = safelog.New(c.Logger)
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
