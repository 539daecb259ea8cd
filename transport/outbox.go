package transport

import (
	"context"
	"errors"
	"time"
)

// OutboxStore is implemented by a Conn whose database can record the ids of handled messages in an
// inbox, in one commit with messages to its own queues. Such a Conn can be the outbox of an
// endpoint on another broker. The inboxes exist when they are part of the installed [Plan]; every
// method fails with [ErrNoQueue] where the inbox is missing, and should fail with [ErrDenied] where
// a right is.
//
// The driver removes ids that are older than [Env].Remember from the inboxes that it is called
// with. One process of all that use the database does so at a time, in small transactions.
type OutboxStore interface {
	// FindHandled reports for each key whether a message was recorded in the inbox under it.
	// Concurrent calls share requests.
	FindHandled(ctx context.Context, inbox string, keys []HandledKey) ([]HandledState, error)

	// Store records e.Key in e.Inbox and sends e.Ops to queues of this Conn: both happen, or on an
	// error neither, unless the error is [ErrOutcomeUnknown]. It fails with [ErrAlreadyHandled] if
	// the id of the key is in the inbox already, and waits for a transaction that is recording it.
	// Otherwise it fails as Dispatch does. Concurrent calls share commits.
	Store(ctx context.Context, e OutboxEntry) error

	// BeginStore returns a transaction for a handler's own writes. Its Complete commits them
	// together with e, and with further operations after e.Ops; a [*DispatchError] counts those of
	// e first. BeginStore or Complete fails as Store does; then the handler's writes are rolled
	// back. The driver may read e until the transaction is over.
	BeginStore(ctx context.Context, e OutboxEntry) (Tx, error)
}

// HandledKey identifies a message in an inbox.
type HandledKey struct {
	// ID is derived from the id of the message. Keys of messages that were made later should be
	// greater, bytewise: databases insert ascending keys at a fraction of the cost.
	ID [16]byte
	// Sum is a checksum of the message, by which a second message with the same id is recognized.
	Sum uint32
}

// HandledState is the state of a [HandledKey] in an inbox.
type HandledState int8

const (
	// NotHandled means that the id is not in the inbox.
	NotHandled HandledState = iota
	// Handled means that a message with this id and this checksum was recorded.
	Handled
	// HandledOther means that a message with this id and another checksum was recorded.
	HandledOther
)

// OutboxEntry is what one commit stores for a message.
type OutboxEntry struct {
	// Inbox is the inbox that records Key.
	Inbox string
	// Key is the key of the message that was handled. nil: none is recorded, and Inbox is not used.
	Key *HandledKey
	// Ops are sent to queues of the OutboxStore.
	Ops []Operation
}

// ErrAlreadyHandled is returned if the inbox has the id of a message already: another delivery of
// the message was handled meanwhile. Nothing was stored.
var ErrAlreadyHandled = errors.New("the message was handled already: another delivery of it has been completed")

// HandledRecorder is implemented by a Delivery of an [OutboxStore]. Without it the endpoint
// recognizes no duplicates in the transaction mode SendsAtomicWithReceive.
type HandledRecorder interface {
	// RecordHandled has the completion of the delivery record key in the inbox of that name: that
	// of Complete and CompleteWith, and that of the delivery's transaction, which may have begun
	// before. It then fails with [ErrAlreadyHandled] as Store does, and the delivery is not
	// settled: after RecordHandled with nil, Complete removes the duplicate. nil: no key is
	// recorded, as before the first call. Retry and Release record none. RecordHandled is never
	// called while the delivery is being settled.
	RecordHandled(inbox string, key *HandledKey)
}

// OutageDetector is implemented by a Tx of [OutboxStore].BeginStore whose database may answer and
// take no writes, as a standby and a full disk do. Without it such an answer to a handler's
// statement is a failure of the message.
type OutageDetector interface {
	// Outage reports whether err, of a handler's statement, is such an answer: other statements
	// fail like that too. The error may be wrapped, and nil or any other error is none. Outage may
	// ask the database, also after Complete has run the handler's statements.
	Outage(ctx context.Context, err error) bool
}

// Clock is implemented by an [OutboxStore] whose database has a clock that all its users share.
// Without it the clocks of the processes must agree: they store when a message expires and is due,
// and another process sends it.
type Clock interface {
	// Now returns the time of the database, as far as it is known. It does no I/O.
	Now() time.Time
}

// InboxInspector is implemented by an [OutboxStore] for tools.
type InboxInspector interface {
	// InspectInbox returns the size of an inbox. It may estimate that of a large one.
	InspectInbox(ctx context.Context, inbox string) (InboxStats, error)
	// ForgetHandled removes ids from the inbox, so that messages with these ids are handled again.
	// It returns the number of those that were there. The checksums of the keys do not matter.
	ForgetHandled(ctx context.Context, inbox string, keys []HandledKey) (int, error)
}

// InboxStats describes an inbox.
type InboxStats struct {
	Name string
	// Rows is the number of ids, and Bytes the size of the table with its indexes.
	Rows, Bytes int64
	// LastHour is the number of ids that were recorded within the last hour.
	LastHour int64
	// Oldest is the age of the oldest id; 0 in an empty inbox.
	Oldest time.Duration
}
