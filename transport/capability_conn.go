package transport

import "context"

// Installer is implemented by a Conn that can create queues. Without it, the queues must exist
// already.
type Installer interface {
	// Install creates the missing parts of plan and changes nothing that exists. Several processes
	// may install at once.
	Install(ctx context.Context, plan Plan) error
}

// Plan lists what an endpoint needs at its broker.
type Plan struct {
	Queues []Queue
	// Types are the message types that the endpoint publishes or subscribes to, each followed by
	// its base types, most concrete first.
	Types [][]string
	// Delays reports whether messages may be delayed. A driver creates what it needs for that.
	Delays bool
	// Inboxes are the names of records of handled messages. Only a driver whose Conn is an
	// [OutboxStore] gets any.
	Inboxes []string
	// Records are the kinds of records that the endpoint stores. Only a driver whose Conn is a
	// [StateInspector] gets any.
	Records []string
}

// Queue is a queue of a [Plan].
type Queue struct {
	Name string
	// Shared reports whether other systems use the queue too, such as the error and audit queue.
	// Drivers create it without additions of their own.
	Shared bool
	// Counted reports whether the deliveries of the queue must be counted exactly (Attempt.Exact),
	// also those that are lost with a process. A driver for a broker with several kinds of queue
	// picks one that counts, whatever its configuration says for other queues. A driver that has
	// none creates an ordinary queue.
	Counted bool
	// Timers reports whether operations with a Name are sent to the queue. Only a driver whose Conn
	// is an [OutboxStore] gets such a queue. A queue that exists without it is updated.
	Timers bool
}

// Subscriber is implemented by a Conn that can publish. Without it the endpoint refuses to publish
// and to subscribe.
type Subscriber interface {
	// Subscribe routes messages that are published under any of the types to queue. Repeating it
	// changes nothing.
	Subscribe(ctx context.Context, queue string, types []string) error
	// Unsubscribe removes these routes. An unknown subscription is no error.
	Unsubscribe(ctx context.Context, queue string, types []string) error
}

// DerivedSubscriber is implemented by a Subscriber whose messages may be published under their
// concrete type alone. Without it a subscription to a type includes the types that derive from it.
type DerivedSubscriber interface {
	// SubscribesDerived reports whether Subscribe needs the types that derive from a handled type
	// too.
	SubscribesDerived() bool
}

// Addresser is implemented by a Conn whose queues have an address for other programs that differs
// from their name, such as that of a table with its schema. Without it the address of a queue is
// its name. Its methods do no I/O and never fail: text that is no name and no address is returned
// as it is, and is a [*NameError] where a queue is needed.
type Addresser interface {
	// Address returns the full address of queue, in the form in which NServiceBus writes it. The
	// argument may be an address already, in any form.
	Address(queue string) string
	// ShortName returns the name by which this Conn knows the queue of an address. All forms of an
	// address have one short name, and every method of the Conn that takes a queue takes each of
	// them. Where the broker stores names in another spelling, as SQS does, the short name has that
	// spelling.
	ShortName(address string) string
}

// TxDispatcher is implemented by a Conn that can send in a transaction of the caller in the
// transport's own database. Without it, messages are sent in a transaction only by handlers.
type TxDispatcher interface {
	// DispatchIn sends ops in tx: they are in their queues once the caller commits it, and never if
	// the caller rolls it back. DispatchIn does neither. The driver defines the type of tx; another
	// type, or a transaction of another database, is an error that names the type. The caller must
	// not use tx meanwhile.
	//
	// On an error none of ops is sent; a [*DispatchError] names the operations that were refused.
	// The caller should roll tx back then: the database may have ended tx. PostgreSQL does so after
	// an error of a statement that has no savepoint, and the driver has none around messages that
	// are sent at once to one queue that took messages before. Otherwise tx can continue and be
	// committed without ops, unless its connection is lost. Receipts are those of Dispatch, valid
	// once tx is committed; those of a transaction that was rolled back may name other messages.
	DispatchIn(ctx context.Context, tx any, ops []Operation) ([]Receipt, error)
}

// Canceler is implemented by a Conn that can cancel a delayed message. Without it, none can be
// cancelled.
type Canceler interface {
	// Cancel removes the message of a [Receipt]. It fails with [ErrNotFound] when the message was
	// delivered or cancelled before.
	Cancel(ctx context.Context, receipt string) error
}

// Translator is implemented by a Conn whose user has a function that changes received messages.
// Without it messages are processed as they are received.
type Translator interface {
	// Translation returns the function, or nil if there is none. The endpoint calls the function
	// once for each delivery, with a copy of the message, where it processes the message. So a
	// function that hangs holds up no other message. If the function panics, the message is moved
	// to the error queue. A message that is Undecodable is not translated.
	Translation() func(m *Message)
}

// Blocker is implemented by a Conn whose broker announces when it accepts no messages, and when it
// accepts them again. Settling a received message then waits until it does.
type Blocker interface {
	// Blocked reports whether the broker accepts no messages at the moment. Dispatch waits until it
	// does.
	Blocked() bool
}

// Checker is implemented by a Conn that refuses operations because of their messages, such as of a
// header that the broker does not accept. Without it such a message of an outbox is refused after
// the commit, and moves to the error queue.
type Checker interface {
	// Check returns the error with which Dispatch refuses the operation, whatever queues exist:
	// because of the message, its headers, properties or delay, or of a name that no queue can
	// have. nil: Dispatch refuses it for no such reason, as far as the driver knows. It makes no
	// request. The endpoint calls it for each operation before it is stored in an outbox.
	Check(op *Operation) error
}

// ConnectionReporter is implemented by a Conn that knows whether it is connected. Without it the
// relay of an outbox takes an operation that fails with [ErrUnreachable] twice in a row for a fault
// of its queue.
type ConnectionReporter interface {
	// Connected reports whether the driver has a connection over which it sends messages at the
	// moment, as far as it knows. It makes no request, and may be called at any time.
	Connected() bool
}

// Hastener is implemented by a Conn whose deliveries are [Deferrer]s.
type Hastener interface {
	// Hasten has messages of the queue that were deferred delivered now. It ignores the handles of
	// messages that have been delivered or removed since.
	Hasten(ctx context.Context, queue string, handles []string) error
}

// Warner is implemented by a Conn that can foresee failures of the queues that it receives from.
// Without it there are no warnings.
type Warner interface {
	// Warnings returns the conditions that will end in a failure, as the driver last saw them. It
	// does no I/O.
	Warnings() []string
}

// Satellites is implemented by a Conn with queues of its own that the endpoint has to process, such
// as a native dead-letter queue. Without it there are none.
type Satellites interface {
	// Satellites returns the queues that exist. The endpoint receives from them as from its own
	// queue, and calls Satellites once after the start. An error means that the broker did not
	// answer for all of them: the endpoint receives from those that are returned with it, is not
	// ready meanwhile, and calls Satellites again, with growing pauses, until there is no error. A
	// queue that does not exist is no error. One goroutine calls it at a time.
	Satellites(ctx context.Context) ([]Satellite, error)
}

// Satellite is a queue of the driver's own with the handler of its messages.
type Satellite struct {
	Queue string
	// Wait returns nil when the queue exists, and otherwise the error of ctx when that ends. The
	// endpoint receives from the queue afterwards. nil: the queue exists already.
	Wait func(ctx context.Context) error
	// Concurrency is how many messages are handled at once; 0 means 1.
	Concurrency int
	// Accepts reports whether the endpoint may send messages to the queue: failed ones that the
	// error queue does not accept, when the endpoint stops. Handle does not receive these.
	Accepts bool
	// Handle returns the operations to send before the message is completed. A [*DeadLetteredError]
	// moves the message to the endpoint's error queue. After any other error the message stays, and
	// is delivered again later.
	Handle func(ctx context.Context, m *Message) ([]Operation, error)
}
