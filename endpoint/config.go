package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/pump"
	"github.com/holdfast-go/holdfast/internal/safelog"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/resilience"
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
	c.Logger = safelog.New(cmp.Or(c.Logger, slog.Default()))
	c.Instance = cmp.Or(c.Instance, fmt.Sprintf("%s-%d", machineName(), os.Getpid()))
	c.Recoverability = c.Recoverability.WithDefaults()
	c.Recoverability.Unrecoverable = slices.Clone(c.Recoverability.Unrecoverable)
	c.Recoverability.Rules = slices.Clone(c.Recoverability.Rules)
	return c
}

// outboxSuffix is appended to the endpoint's name for the name of its outbox.
const outboxSuffix = ".outbox"

// inboxSuffix is appended to the endpoint's name for the name of its inbox.
const inboxSuffix = ".handled"

const quarantineSuffix = ".quarantine"

// validate returns all mistakes in c as the user wrote it.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.Name == "":
		bad("Name is empty")
	case !queueName(c.Name):
		bad("Name %q has a character that no queue may have (@, a control character, or invalid UTF-8)", c.Name)
	}
	if c.Transport == nil {
		bad("Transport is nil")
	}
	c.validateQueues(func(queue string) string { return queue }, bad)
	for _, queue := range append(c.Recoverability.ErrorQueues(), c.AuditQueue) {
		if !isText(queue) {
			bad("the error or audit queue %q %s", queue, notText)
		}
	}
	if c.AuditExpireAfter < 0 {
		bad("AuditExpireAfter is negative: %v", c.AuditExpireAfter)
	}
	switch {
	case c.AuditQueue == "" && c.AuditExpireAfter > 0:
		bad("AuditExpireAfter is set, but AuditQueue is not: there are no copies to expire")
	case c.AuditQueue != "" && c.SendOnly:
		bad("AuditQueue is set, but the endpoint is SendOnly: it processes no messages")
	}
	if c.Concurrency < 0 || c.Concurrency > maxConcurrency {
		bad("Concurrency is %d: it must be from 1 to %d, or 0 for the default", c.Concurrency, maxConcurrency)
	}
	if c.MaxBufferedBytes < 0 {
		bad("MaxBufferedBytes is negative: %d; 0 is the default of %d", c.MaxBufferedBytes, pump.DefaultBudget)
	}
	switch {
	case c.InstanceQueue && c.SendOnly:
		bad("InstanceQueue is set, but the endpoint is SendOnly: it has no queues")
	case c.InstanceQueue && c.Instance == "":
		bad("InstanceQueue is set: it needs an Instance that is the same after a restart")
	case c.InstanceQueue && !queueName(c.Instance):
		bad("Instance %q has a character that no queue may have (@, a control character, or invalid UTF-8)", c.Instance)
	}
	c.Host.validate(bad)
	c.validateFunctions(bad)
	if c.SendOnly && len(c.Handlers) > 0 {
		bad("SendOnly is set, but there are handlers: they would never run")
	}
	if c.HandlerTimeout < 0 {
		bad("HandlerTimeout is negative: %v", c.HandlerTimeout)
	}
	if c.StopTimeout < None {
		bad("StopTimeout is negative: %v; use None for no limit", c.StopTimeout)
	}
	if c.Transactions < None || c.Transactions > SendsAtomicWithReceive {
		bad("Transactions is %v: there is no such mode", c.Transactions)
	}
	c.validateOutbox(bad)
	c.validateRecords(bad)
	c.validateRaised(bad)
	c.validateRetries(bad)
	serializers(c.Serializers).validate(bad)
	return errors.Join(append(errs, c.Recoverability.Validate())...)
}

// validateQueues reports queues that are both received from and an error or audit queue. of returns
// the one name of a queue.
func (c Config) validateQueues(of func(queue string) string, bad func(format string, args ...any)) {
	var errorQueues []string
	for _, queue := range c.Recoverability.ErrorQueues() {
		errorQueues = append(errorQueues, of(queue))
	}
	audit, quarantine := of(c.AuditQueue), of(c.Name+quarantineSuffix)
	for _, input := range []struct{ field, queue string }{
		{"Name", of(c.Name)}, {"the queue of the instance", of(c.instanceQueue())},
	} {
		if input.queue != "" && slices.Contains(errorQueues, input.queue) {
			bad("%s and an error queue of Recoverability are both %q: what fails would come back at once",
				input.field, input.queue)
		}
		if audit != "" && audit == input.queue {
			bad("%s and AuditQueue are both %q: every message would come back at once", input.field, audit)
		}
	}
	if slices.Contains(errorQueues, quarantine) || audit == quarantine {
		bad("%q is the endpoint's quarantine and cannot be an error queue or its audit queue too", quarantine)
	}
	if audit != "" && slices.Contains(errorQueues, audit) {
		bad("AuditQueue and an error queue of Recoverability are both %q", audit)
	}
}

func (c Config) validateOutbox(bad func(format string, args ...any)) {
	switch atomic := c.Transactions == SendsAtomicWithReceive; {
	case c.Outbox != nil && atomic:
		bad("Outbox is set, but Transactions is %v, which commits in the transport's own database: leave Outbox out, or use %v",
			c.Transactions, ReceiveOnly)
	case c.Outbox != nil && c.Transactions == None:
		bad("Outbox is set, but Transactions is None, which completes messages before they are handled: use %v", ReceiveOnly)
	case c.Remember != 0 && c.Outbox == nil && !atomic:
		bad("Remember is set, but there is no database for the ids: set Outbox, or Transactions to %v", SendsAtomicWithReceive)
	case c.OutboxRefusedFor < None:
		bad("OutboxRefusedFor is negative: %v; use None to move messages at their third refusal", c.OutboxRefusedFor)
	case c.OutboxRefusedFor != 0 && c.Outbox == nil:
		bad("OutboxRefusedFor is set, but there is no Outbox")
	case c.Remember < None:
		bad("Remember is negative: %v; use None to keep no ids", c.Remember)
	case c.Remember > 0 && c.Remember < minRemember:
		bad("Remember is %v: it must be at least %v, as delayed retries may begin until then", c.Remember, minRemember)
	}
}

// validateRecords reports mistakes in the declarations of handlers with records.
func (c Config) validateRecords(bad func(format string, args ...any)) {
	owners := map[string]any{}
	type handled struct {
		kind   string
		goType reflect.Type
	}
	seen := map[handled]bool{}
	for i := range c.Handlers {
		h := &c.Handlers[i]
		if h.state == nil || h.invoke == nil {
			continue
		}
		if err := h.state.Validate(); err != nil {
			bad("handler %s, with state %q: %w", h.name, h.state.Kind, err)
			continue
		}
		switch owner, known := owners[h.state.Kind]; {
		case !known:
			owners[h.state.Kind] = h.state.Owner
		case owner != h.state.Owner:
			bad("handler %s: two parts of the program keep state under the name %q: give each a name of its own", h.name, h.state.Kind)
		case seen[handled{h.state.Kind, h.goType}]:
			bad("handler %s: two handlers of %v keep state under the name %q: add each once", h.name, h.goType, h.state.Kind)
		}
		seen[handled{h.state.Kind, h.goType}] = true
	}
	if len(owners) > 0 && c.Outbox == nil && c.Transactions != SendsAtomicWithReceive {
		bad("there are handlers with state, which is stored in one commit with the messages that they send: set Outbox, "+
			"or Transactions to %v", SendsAtomicWithReceive)
	}
}

func (c Config) validateRaised(bad func(format string, args ...any)) {
	for i, r := range c.Raised {
		switch {
		case r.err != nil:
			bad("%w", r.err)
		case r.call == nil:
			bad("Raised: function %d is a zero Raised: use OnRaised", i+1)
		}
	}
}

func (c Config) validateFunctions(bad func(format string, args ...any)) {
	for i, f := range c.Notify {
		if f == nil {
			bad("Notify[%d] is nil", i)
		}
	}
	for i, f := range c.Background {
		if f == nil {
			bad("Background[%d] is nil", i)
		}
	}
}

// validateRetries reports policies that the other fields do not allow.
func (c Config) validateRetries(bad func(format string, args ...any)) {
	uses := c.Recoverability.Rules
	for i := range uses {
		switch use := uses[i].Retry; {
		case use.Mode == 0, use.Policy.Retry == resilience.Retry{}: // a time limit alone
		case c.Transactions == None:
			bad("recoverability: rule %d: policy %.200q has retries, but Transactions is None, which has none: use %v", i+1, use.Policy.Name, ReceiveOnly)
		case use.Mode == resilience.DeferredMode:
			c.validateRemember(use.Policy, bad)
		}
	}
	for _, p := range c.Recoverability.Policies.All() {
		if c.Transactions == None && p.Retry != (resilience.Retry{}) {
			bad("recoverability: policy %.200q of Policies has retries, but Transactions is None, which has none: use %v", p.Name, ReceiveOnly)
		}
		c.validateRemember(p, bad)
	}
}

// validateRemember reports a policy whose retries may begin when the ids of the message are
// forgotten.
func (c Config) validateRemember(p resilience.Policy, bad func(format string, args ...any)) {
	remember := c.Remember
	if c.Outbox != nil && remember == 0 {
		remember = defaultRemember
	}
	if total := recoverability.TotalDelay(p); remember > 0 && total > remember {
		bad("recoverability: the delays of policy %.200q add up to %v, but Remember is %v: duplicates that arrive later are not "+
			"recognized: raise Remember", p.Name, total, remember)
	}
}

// bounded reports whether a message may have a policy or a time limit of its own.
func (c Config) bounded() bool {
	return len(c.Recoverability.Policies.Names()) > 0 ||
		slices.ContainsFunc(c.Recoverability.Rules, func(r recoverability.Rule) bool { return r.Retry.Mode != 0 }) ||
		slices.ContainsFunc(c.Messages, func(m Message) bool { return m.timeout > 0 })
}
