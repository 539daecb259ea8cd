package transport

import (
	"context"
	"time"
)

// Completer is implemented by a Delivery that can be completed and send messages as one unit.
// Without it the endpoint dispatches first and completes afterwards, so a crash between the two
// sends twice.
type Completer interface {
	// CompleteWith completes the delivery and sends ops: both happen or neither. It fails with
	// [ErrLeaseLost], with a [*DispatchError] when an operation is refused, or with
	// [ErrOutcomeUnknown].
	CompleteWith(ctx context.Context, ops []Operation) error
}

// Transactor is implemented by a Delivery that can be completed in one transaction with the
// handler's own writes. Without it the transaction mode SendsAtomicWithReceive is not offered.
type Transactor interface {
	// Begin returns the transaction of this delivery. The driver defines what it is, and when it
	// really begins: users reach it through the driver's own function, such as postgres.Tx or
	// sqlite.OnCommit, which calls [TxOf].
	Begin(ctx context.Context) (Tx, error)
}

// Tx is a transaction that a delivery is part of. It is used by one goroutine at a time.
type Tx interface {
	// Complete commits: the handler's writes, ops and the completion happen together or not at all.
	// It fails like CompleteWith, and when the handler's part cannot be committed; the transaction
	// is then over, and the delivery is not settled.
	Complete(ctx context.Context, ops []Operation) error
	// Rollback undoes the handler's writes. It does not settle the delivery. After Complete it does
	// nothing.
	Rollback(ctx context.Context) error
}

// ConflictDetector is implemented by a Tx of a database that may abort it in favor of another
// transaction. Without it, such an abort is a failure of the message.
type ConflictDetector interface {
	// Conflict reports whether err, of a handler's statement or of Complete, is such an abort, as
	// in a deadlock: nothing was written, and the same transaction may succeed when it is repeated.
	Conflict(err error) bool
}

// Postponer is implemented by a Delivery that can wait in its queue until another queue takes
// messages again. Without it a [*BusyError] is a failure of the message.
type Postponer interface {
	// Postpone returns the message to its queue, with the attempts that it had before this
	// delivery. The message is delivered again when busy takes messages, or after some time.
	Postpone(ctx context.Context, busy string) error
}

// Deferrer is implemented by a Delivery that can wait in its queue and be called back, where the
// Conn is a [Hastener]. Without it the relay of an outbox replaces a message whose destination
// accepts none by a delayed copy, which returns at its time also if the destination accepts
// messages before.
type Deferrer interface {
	// Defer returns the message to its queue, with the attempts that it had before this delivery.
	// The message is delivered again after that time, or after [Hastener].Hasten has been called
	// with the handle, if that is before. A handle is valid until the message is delivered again.
	Defer(ctx context.Context, after time.Duration) (handle string, err error)
}

// Holder is implemented by a Delivery whose receiver bounds its unsettled deliveries, by its window
// or by a prefetch of the broker. The pump calls it for a message that stays unsettled for long
// although no handler runs, such as a failed one that the error queue does not accept. Without it
// the pump adds the message to the window of a driver that prefetches.
type Holder interface {
	// Hold takes the delivery out of the bound, so that another message is delivered in its place.
	// It makes no request, and returns at once. A second call, and a call for a settled delivery,
	// do nothing. until is the time at which the broker delivers the message again if it is not
	// settled, and zero if there is none (Limits.MaxHold): a prefetched message has been unsettled
	// for longer than since its Receive.
	Hold() (until time.Time)
}

// LossDetector is implemented by a Delivery without a lease that can end before it is settled, with
// its connection for example. Without it a held message whose delivery has ended is noticed when it
// is settled, and is delivered twice until then.
type LossDetector interface {
	// Lost reports whether no settle of the delivery can succeed any more, and the broker delivers
	// the message again. It makes no request.
	Lost() bool
}

// Relayer is implemented by a Delivery whose message may be for another queue, and was kept in this
// one until it was due. Without it every message is for the endpoint.
type Relayer interface {
	// Relay returns the operations that send such a message on, and nil for a message of the
	// endpoint. The endpoint calls it first, and does not handle a message that has some: it sends
	// them and completes the delivery, as one unit where the delivery is a [Completer]. Where the
	// broker refuses an operation, because its queue does not exist for example, the message moves
	// to the error queue, with the queue of the operation as the one in which it failed. Otherwise
	// the message stays and is delivered again. Relay does no I/O, and allocates nothing for a
	// message of the endpoint.
	Relay() []Operation
}

// DeadLetterer is implemented by a Delivery whose broker has a dead-letter queue of its own.
// Without it a dead-lettered message is moved to the error queue.
type DeadLetterer interface {
	// DeadLetter moves the message to that queue, with the reason where the broker has a place for
	// it.
	DeadLetter(ctx context.Context, reason string) error
}

// RetryReasoner is implemented by a Delivery whose broker keeps a note with a message that is
// retried, where its tools show it. Without it the reason of an immediate retry is in the
// endpoint's log alone.
type RetryReasoner interface {
	// RetryBecause is Retry, and stores the reason with the message, truncated where the broker has
	// less room. None of the headers of the next delivery shows it.
	RetryBecause(ctx context.Context, reason string) error
}
