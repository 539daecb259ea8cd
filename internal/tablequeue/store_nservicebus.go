package tablequeue

import (
	"context"
	"errors"
	"time"
)

// Endpoints of NServiceBus may have their queues in the database of a [Store]. Their tables have no
// visible_at: a foreign queue takes no delayed messages, and its sender keeps them in a table of
// its own until they are due. The header NServiceBus.SqlServer.ForwardDestination of such a message
// has the address that it is for.

// DelayedSuffix is the end of the name of the table in which an endpoint of NServiceBus keeps its
// delayed messages, after the name of its queue.
const DelayedSuffix = ".Delayed"

// ErrNoDelays is wrapped by the error of a [Store] for a delayed row whose queue is foreign.
// Nothing was written, and [Foreign].Foreign reports true for that queue from then on. Classify
// returns Refused for it.
var ErrNoDelays = errors.New("its table, one of NServiceBus's, takes no delayed messages")

// Foreign is implemented by a [Store] that can send to queues of NServiceBus. Without it the header
// with the destination has no meaning, and no store returns [ErrNoDelays].
//
// The engine keeps a delayed message for a foreign queue in the queue with [ForwardsSuffix] beside
// that of the endpoint, with the address of the [transport.Addresser] that the store has to be too.
type Foreign interface {
	// Foreign reports whether queue, which Check has passed, is known to be one of NServiceBus. It
	// does no I/O.
	Foreign(queue string) bool
}

// DelayedTables is implemented by a [Store] that can read the tables with [DelayedSuffix]. Without
// it they are not read. Several processes may move the rows of one table at once.
type DelayedTables interface {
	// HasDelayed reports whether there is such a table beside queue. A table of that name with
	// other columns than those of NServiceBus is an [*UnfitError].
	HasDelayed(ctx context.Context, queue string) (bool, error)
	// MoveDue moves up to limit rows that are due from that table into queue, the earliest first,
	// in one transaction. The rows keep headers and body, and get new ids. It skips locked rows.
	// Whether a row is due is decided as NServiceBus does, who writes the time in UTC without a
	// zone, which the server reads in the time zone of the session.
	//
	// next is the time until the next row is due; 0 when there is none. It fails with
	// [transport.ErrNoQueue] when the table does not exist any more.
	MoveDue(ctx context.Context, queue string, limit int) (moved int, next time.Duration, err error)
}

// HandingOver is implemented by a [Store] whose queues endpoints of NServiceBus can receive from.
// Without it the engine hands none over. NServiceBus ignores visible_at and leases.
type HandingOver interface {
	// Holders returns the owners of the rows of queue that are leased now, the first by name first.
	Holders(ctx context.Context, queue string) ([]Holder, error)
	// PrepareHandOver makes the ids of queue unique, and creates the table with [DelayedSuffix]
	// where it is missing. Both can be done while other programs send to queue, and may be
	// repeated. A table that cannot become one of NServiceBus is an [*UnfitError].
	PrepareHandOver(ctx context.Context, queue string) error
	// MoveDelayed moves up to limit rows without a lease, in one transaction, from the queue from
	// into the table with [DelayedSuffix] of queue, with the headers that headers returns for
	// theirs, and returns their number. These are the rows that become visible later; where from is
	// another queue than queue, all rows.
	MoveDelayed(ctx context.Context, queue, from string, limit int, headers func(string) string) (int, error)
	// EndHandOver does in one transaction, in which no other program uses queue: it fails with
	// [ErrLeased] while a row is leased, moves the rows that MoveDelayed moves, and removes the
	// columns that NServiceBus's tables do not have, so that the queue is a foreign one afterwards.
	// It waits for a lock at most 50 ms, and then fails with a Locked error: others wait behind it.
	EndHandOver(ctx context.Context, queue string, headers func(string) string) (moved int, err error)
}

// Holder is an owner of leases with the number of leased rows.
type Holder struct {
	Owner string
	Rows  int64
}

// ErrLeased means that rows of a queue are leased.
var ErrLeased = errors.New("messages are leased")
