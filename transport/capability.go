package transport

import (
	"context"
	"time"
)

// Installer is implemented by a Conn that can create queues. Without it, they must
// exist already.
type Installer interface {
	// Install creates what is missing of the plan and leaves alone what exists.
	// Several processes may install at once.
	Install(ctx context.Context, plan Plan) error
}

// Plan is what an endpoint needs at its broker.
type Plan struct {
	Queues []Queue
	// Types are the message types that the endpoint publishes or subscribes to,
	// each with its base types, most concrete first.
	Types [][]string
	// Delays is true when messages may be delayed. Drivers that need something for it create that.
	Delays bool
}

// Queue is a queue to be created.
type Queue struct {
	Name string
	// Shared is true for queues that other systems use too, such as the error and
	// audit queue: drivers create them without additions of their own.
	Shared bool
	// Counted is true for a queue whose hand-outs have to be counted exactly (Attempt.Exact), also
	// those lost with a process. A driver for a broker with several kinds of queue picks one that
	// counts, whatever its configuration says for others; one that cannot creates what it can.
	Counted bool
}

// Subscriber is implemented by a Conn that can publish. Without it the endpoint
// refuses to publish and to subscribe.
type Subscriber interface {
	// Subscribe makes messages published under any of the types arrive in queue.
	// Repeating it changes nothing.
	Subscribe(ctx context.Context, queue string, types []string) error
	// Unsubscribe ends that. Unknown subscriptions are no error.
	Unsubscribe(ctx context.Context, queue string, types []string) error
}

// TxDispatcher is implemented by a Conn that can send in a transaction that its caller has begun
// in the transport's own database. Without it, nobody can send in one outside handlers.
type TxDispatcher interface {
	// DispatchIn sends ops in tx: they are there when its caller commits it, and never
	// when he does not. It neither commits nor rolls back. What tx has to be is the
	// driver's: anything else, and one of another database, is an error that says what is
	// wanted. Nothing else may use tx meanwhile.
	//
	// On an error none of ops is sent, and unless its connection is lost tx can go on, and be
	// committed, without them: a [*DispatchError] names the operations that were refused.
	// Receipts are as those of Dispatch, and good when tx has been committed; those of one that
	// was rolled back may name other messages.
	DispatchIn(ctx context.Context, tx any, ops []Operation) ([]Receipt, error)
}

// Canceler is implemented by a Conn that can call back a delayed message.
// Without it, nothing can be cancelled.
type Canceler interface {
	// Cancel removes the message of a [Receipt]. It fails with [ErrNotFound] when the
	// message has been handed out or cancelled already.
	Cancel(ctx context.Context, receipt string) error
}

// Blocker is implemented by a Conn whose broker says when it takes no messages, and when it does again. Settling a received
// message then waits for as long as that lasts.
type Blocker interface {
	// Blocked reports whether the broker takes no messages at the moment. Dispatch waits for it.
	Blocked() bool
}

// Inspector is implemented by a Conn that can look at queues. Without it there
// are no depth metrics, and a missing error or audit queue is found when it is needed.
type Inspector interface {
	// Inspect looks at the named queues, or at all that the driver can list when none is
	// named. It fails with [ErrNoQueue] for one that does not exist.
	Inspect(ctx context.Context, queues ...string) ([]QueueStats, error)
}

// QueueStats is what a queue holds. A count that the broker cannot tell is -1.
type QueueStats struct {
	Name string `json:"name"`
	// Ready messages wait to be received, Unsettled ones are being handled, and
	// Delayed ones are not due yet.
	Ready     int64 `json:"ready"`
	Unsettled int64 `json:"unsettled"`
	Delayed   int64 `json:"delayed"`
	// Oldest is the age of the first ready message; 0 when there is none or the
	// broker does not tell.
	Oldest time.Duration `json:"oldest_ns"`
}

// Satellites is implemented by a Conn with queues of its own to be worked on, such
// as a native dead-letter queue. Without it there are none.
type Satellites interface {
	// Satellites returns the queues that exist. The endpoint receives from them as it does from its own, and calls
	// Satellites once after the start. An error says that the broker did not answer for all of them: the endpoint
	// receives from those that are returned beside it, is not ready meanwhile, and calls Satellites again, with growing pauses,
	// until there is no error. A queue that does not exist is no error. One goroutine calls it at a time.
	Satellites(ctx context.Context) ([]Satellite, error)
}

// Satellite is a queue that the driver wants read, and what to do with its messages.
type Satellite struct {
	Queue string
	// Concurrency is how many messages are handled at once; 0 means 1.
	Concurrency int
	// Handle returns what to send before the message is completed. A [*DeadLetteredError] moves it
	// to the endpoint's error queue; after any other error it stays, and comes again later.
	Handle func(ctx context.Context, m *Message) ([]Operation, error)
}

// ByteReceiver is implemented by a Receiver that can bound one Receive by size as well as by number. Without it the
// pump asks for fewer messages, by the sizes that it has seen.
type ByteReceiver interface {
	// ReceiveBytes is Receive with a second bound: the headers and bodies of the deliveries that it returns have at most
	// maxBytes bytes in total. A single delivery is returned whatever its size. maxBytes is at least 1.
	ReceiveBytes(ctx context.Context, limit int, maxBytes int64) ([]Delivery, error)
}

// Renewer is implemented by a Receiver whose deliveries are leased
// (Limits.Lease). The pump renews all that it holds.
type Renewer interface {
	// Renew extends the leases to a full Limits.Lease from now. The result has
	// an entry per delivery: nil, [ErrLeaseLost], or why it could not be told.
	Renew(ctx context.Context, ds []Delivery) []error
}

// Completer is implemented by a Delivery that can be completed and send
// messages as one unit. Without it the endpoint dispatches first and completes
// afterwards, so a crash between the two sends twice.
type Completer interface {
	// CompleteWith completes the delivery and sends ops: both happen or neither.
	// It fails with [ErrLeaseLost], with a [*DispatchError] when an operation is
	// refused, or with [ErrOutcomeUnknown].
	CompleteWith(ctx context.Context, ops []Operation) error
}

// Transactor is implemented by a Delivery that can be completed in one
// transaction with the handler's own writes. Without it the transaction mode
// SendsAtomicWithReceive is not offered.
type Transactor interface {
	// Begin gives the transaction of this delivery. What it is, and when it
	// really opens, is the driver's: users reach it through the driver's own
	// function, such as sqlserver.Tx or sqlite.OnCommit, which calls [UnwrapTx].
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction that a delivery is part of. It is used by one goroutine at a time.
type Tx interface {
	// Complete commits: the handler's writes, ops and the completion happen
	// together or not at all. It fails like CompleteWith, and when the
	// handler's part cannot be committed; the transaction is then over, and
	// the delivery is not settled.
	Complete(ctx context.Context, ops []Operation) error
	// Rollback undoes the handler's writes. The delivery is not settled by it. After
	// Complete it does nothing.
	Rollback(ctx context.Context) error
}

// UnwrapTx returns the driver's own transaction behind tx. A session wraps it, so that handlers cannot end it; the
// driver's function that makes use of a session's transaction, such as sqlite.OnCommit, unwraps it.
func UnwrapTx(tx Tx) Tx {
	if w, ok := tx.(interface{ Unwrap() Tx }); ok {
		return w.Unwrap()
	}
	return tx
}

// ConflictDetector is implemented by a Tx of a database that may end it for the sake of another
// transaction. Without it, a message of which that happens has failed like any other.
type ConflictDetector interface {
	// Conflict tells whether err, of a handler's statement or of Complete, means just that, as in
	// a deadlock: nothing has happened, and all of it may pass if done again.
	Conflict(err error) bool
}

// Drainer is implemented by a Receiver that holds messages ahead where giving them back counts as an attempt, so that
// they are handled before the endpoint stops. Without it the driver gives them back when it is closed.
type Drainer interface {
	// Drain ends receiving: the broker is to send no more, and up to limit of what it has sent ahead are returned in
	// their order, to be settled like what Receive returns. It is called when the last Receive has returned, again and again
	// until it returns none, and waits for the broker no longer than ctx: once that has ended it returns what is held. What
	// comes later, and is not asked for, goes back with Close; what was sent over a lost connection is not returned.
	Drain(ctx context.Context, limit int) []Delivery
}

// SpacedRetrier is implemented by a Delivery that can be made available again after a
// short while without leaving its queue. Without it a spaced retry is an
// immediate one.
type SpacedRetrier interface {
	RetryAfter(ctx context.Context, d time.Duration) error
}

// Postponer is implemented by a Delivery that can wait in its queue until another queue takes messages again. Without it
// a [*BusyError] is a failure of the message.
type Postponer interface {
	// Postpone returns the message to its queue, with the attempts that it had before this delivery. The message is
	// delivered again when busy takes messages, or after some time.
	Postpone(ctx context.Context, busy string) error
}

// DeadLetterer is implemented by a Delivery whose broker has a dead-letter queue of
// its own. Without it a dead-lettered message goes to the error queue.
type DeadLetterer interface {
	DeadLetter(ctx context.Context, reason string) error
}

// RetryReasoner is implemented by a Delivery whose broker keeps a note with a message that is retried, where its tools show it.
// Without it the reason of an immediate retry is in the endpoint's log alone.
type RetryReasoner interface {
	// RetryBecause is Retry, and leaves the reason with the message, as much of it as there is room for. It shows in none of
	// the headers of the next hand-out.
	RetryBecause(ctx context.Context, reason string) error
}
