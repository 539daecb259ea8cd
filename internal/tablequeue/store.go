package tablequeue

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Store is a SQL dialect: it keeps queues as tables and runs the engine's statements.
// Its methods are called by many goroutines at once, and none is called after Close.
//
// The rows of a queue have the columns
//
//	seq             an integer that grows with every insert, the key
//	id              the message's id, text
//	headers         a JSON object of strings, text
//	body            bytes; null, which others may insert, is an empty body
//	visible_at      when it may be claimed: now, the end of a delay, or of a lease
//	expires         when it is worthless, or null (expires_at on SQLite)
//	delivery_count  how often it has been claimed, 0 at first
//	lease_id        the number of the claim that holds it, or null
//	lease_owner     who made that claim, or null
//	last_error      why it was last retried, or null
//
// and an index on (visible_at, seq). All but headers have defaults, so that others can
// insert with plain SQL. Every "now" below is the database's clock, never this process's;
// durations are to be kept to the microsecond or finer where the database can.
//
// Errors carry the dialect's name and what was attempted. One about a missing table
// wraps [transport.ErrNoQueue]. They are told apart by Classify.
type Store interface {
	Queues
	Browsing
	Topology
	Subscriptions

	// Classify says what an error of Claim, Flush, Renew, Take or Complete means, also one that
	// has been wrapped. An error that is none of the store's is Failed. It
	// is never called with nil.
	Classify(err error) Class

	// Close closes the connections. The engine calls it once, when it calls nothing else
	// any more; transactions that are still open are rolled back.
	Close() error
}

// Queues is the part of a [Store] that messages go through.
type Queues interface {
	// Check tells whether queue is a possible name: it does no I/O, is called for
	// every operation and so must be cheap for a name seen before.
	Check(queue string) error

	// Claim leases up to c.Limit visible rows, the longest visible first, in one
	// statement, and appends them to into in any order. Each row's
	// delivery_count goes up by one, visible_at becomes now + c.For, lease_id
	// c.Lease and lease_owner c.Owner. Rows that another claim has locked are
	// passed over, not waited for. It never filters by count.
	//
	// Rows that have expired are claimed like others, with Expired set (their headers and
	// body may be left out): the engine removes them.
	//
	// When there is no visible row, next is how long after now the first one becomes
	// visible (leases count), or 0 when the table is empty.
	Claim(ctx context.Context, c Claim, into []Claimed) (rows []Claimed, next time.Duration, err error)

	// Flush does what the units say in one transaction, and with as few
	// statements as the dialect can. A unit whose lease is no longer the row's is
	// left out, none of its Rows are inserted, and its Lost is set; that is no error. On
	// an error nothing has happened, unless it is Unknown. Rows with WantSeq get their
	// Seq.
	//
	// The rows of a unit for the same queue are inserted in their order. The store
	// keeps nothing of the units after it returns.
	Flush(ctx context.Context, units []*Unit) error

	// InsertIn inserts rows in tx, a transaction of the same database that somebody else has
	// begun and will end: all, or on an error none, after which tx can go on unless its
	// connection is lost. Receivers, those of this process too, are notified soon after tx has committed.
	// Any other tx is an error that says what is wanted, also when there are no rows.
	InsertIn(ctx context.Context, tx any, rows []Row) error

	// Renew makes the leases of queue end at now + d, those too that have run out but
	// which nobody else has claimed. lost has an entry per lease: true where the lease is
	// no longer the row's.
	Renew(ctx context.Context, queue string, leases []Lease, d time.Duration) (lost []bool, err error)

	// Abandon makes the rows of queue leased by owner visible now, with their counts
	// kept. No lease lasts longer than d, so that only rows visible until now + d need to be
	// looked at.
	Abandon(ctx context.Context, queue, owner string, d time.Duration) error

	// Cancel deletes the row if it has never been claimed, and says whether it did.
	Cancel(ctx context.Context, queue string, seq int64) (bool, error)
}

// Browsing is the part of a [Store] that tools look at rows with, where they are, and remove them.
type Browsing interface {
	// Last is the highest seq in queue, 0 when it is empty.
	Last(ctx context.Context, queue string) (int64, error)
	// Browse reads the rows of a page by seq, leased and delayed ones too, but none that
	// have expired. It may end the page where the bodies so far are larger than [MaxPage].
	Browse(ctx context.Context, p Page) ([]Claimed, error)
	// Purge deletes the rows of queue that are visible, in as few statements as the database can well
	// do, and says how many.
	Purge(ctx context.Context, queue string) (int64, error)
	// Take does u, whose Verb is Delete, to a row that nobody has leased: Lost is set when it is
	// not visible. The number of u's lease is nobody else's, for a store to lease the row in
	// the same transaction.
	Take(ctx context.Context, u *Unit) error
}

// Page is a part of a queue: at most Limit rows with After < seq <= Last.
type Page struct {
	Queue       string
	After, Last int64
	Limit       int
}

// Topology is the part of a [Store] that makes tables and looks at them.
type Topology interface {
	// Exists fails with [transport.ErrNoQueue] when there is no such queue, and with an [*UnfitError] when a table of
	// that name is not a queue of this version.
	Exists(ctx context.Context, queue string) error
	// Missing reports, for each of queues, whether there is no table to send to. Check has passed them.
	Missing(ctx context.Context, queues []string) ([]bool, error)
	// Install creates what is missing of the queues and the table of subscriptions, and
	// leaves alone what exists. Several processes may do it at once.
	Install(ctx context.Context, plan transport.Plan) error
	// Remove deletes the queues, their messages and their subscriptions: all, or on an error none. A queue that does not
	// exist is no error; a table that is not a queue of the engine is an [*UnfitError]. Check has passed the names.
	Remove(ctx context.Context, queues []string) error
	// Inspect is [transport.Inspector]. Rows that have expired do not count.
	Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error)
}

// ErrNotInstalled is wrapped by the errors of [Subscriptions] where the table of subscriptions does not exist.
var ErrNotInstalled = errors.New("the table of subscriptions is missing: run the installer")

// UnfitError says why a table that exists is not a queue that this version can receive from.
type UnfitError struct {
	Reason   string
	Sendable bool // messages can be sent to it
}

func (e *UnfitError) Error() string { return e.Reason }

// Subscriptions is the part of a [Store] that knows who wants which types.
type Subscriptions interface {
	// Subscribe and Unsubscribe are those of [transport.Subscriber].
	Subscribe(ctx context.Context, queue string, types []string) error
	Unsubscribe(ctx context.Context, queue string, types []string) error
	// Subscriptions returns all of them, some perhaps several times. It fails with [ErrNotInstalled] where the table is
	// missing.
	Subscriptions(ctx context.Context) ([]Subscription, error)
}

// Subscription says that messages published under Type go to Queue.
type Subscription struct{ Type, Queue string }

// Claim is a request for rows.
type Claim struct {
	Queue string
	Limit int           // at least 1
	Lease int64         // the new lease_id: random, never 0
	For   time.Duration // how long the lease lasts
	Owner string        // who claims
	// MaxBytes bounds the headers and bodies of the rows together, but for the first row, which is
	// claimed whatever its size. 0 is no bound.
	MaxBytes int64
}

// Claimed is a row that has been leased.
type Claimed struct {
	Seq     int64
	ID      string
	Headers string // as stored
	Body    []byte // owned by the engine from now on
	Count   int    // delivery_count, this claim included
	Expired bool
}

// Lease names a row as a claim holds it.
type Lease struct {
	Seq int64
	ID  int64
}

// Verb is what to do with a leased row.
type Verb int8

const (
	// Send leaves no row to be settled: the unit has Rows only, and Queue and Lease
	// mean nothing.
	Send Verb = iota
	// Delete removes the row.
	Delete
	// Retry makes the row visible at now + After, sets last_error to Note, and ends its lease.
	Retry
	// Release makes the row visible at now + After, takes one from its delivery_count and ends
	// its lease.
	Release
)

// Unit is what happens to the database whole or not at all: a row settled, and messages
// sent with it.
type Unit struct {
	Verb  Verb
	Queue string
	Lease Lease
	After time.Duration // of Retry and Release
	Note  string        // of Retry; empty leaves last_error as it is
	Rows  []Row         // of Send and Delete

	// Lost is set by Flush: the lease was no longer the row's, nothing of this
	// unit has happened.
	Lost bool

	of *work // what it is, or is part of
}

// Row is a message to be inserted.
type Row struct {
	Queue   string // Check has passed it
	ID      string
	Headers []byte // JSON, UTF-8
	Body    []byte // nil is an empty body. Where others read the tables too it is never stored as null
	// At is when the row becomes visible, but not before now; where it is
	// zero, that is now + After.
	At    time.Time
	After time.Duration
	// TTL makes the row expire at the moment it becomes visible + TTL; 0 is never.
	TTL time.Duration
	// Op is the index of the operation that this row is of. The store ignores it.
	Op int

	// WantSeq asks Flush to set Seq to that of the inserted row.
	WantSeq bool
	Seq     int64
}

// Timed is true when the row is not visible at once and for ever.
func (r *Row) Timed() bool { return r.After > 0 || r.TTL > 0 || !r.At.IsZero() }

// Class is what an error of a [Store] means for the engine.
type Class int8

const (
	// Failed says that nothing has happened, for a reason that is none of those below. All that was in the
	// batch fails.
	Failed Class = iota
	// Unavailable says that the database could not be asked, or takes nothing at the moment. Nothing
	// has happened. All that was in the batch fails.
	Unavailable
	// Refused says that the database does not want something in the batch, such as a row for a table
	// that does not exist. Nothing has happened; the rest may pass without it.
	Refused
	// Conflict is a deadlock or the like. Nothing has happened; the same batch may pass
	// if tried again.
	Conflict
	// Locked says that a lock could not be had in time. Nothing has happened.
	Locked
	// Unknown says that the connection broke, or ctx ended, after the statement was sent: it
	// may have happened.
	Unknown
)

// Orphaner is implemented by a [Store] that can be cut off while it answers, so that rows are leased
// to a claim that nobody heard of. Without it they are visible again when the lease runs out.
type Orphaner interface {
	// AbandonClaims makes the rows of queue that were leased under any of the lease numbers visible
	// now, with their counts kept. As with Abandon, no lease lasts longer than d.
	AbandonClaims(ctx context.Context, queue string, leases []int64, d time.Duration) error
}

// Locks is implemented by a [Store] in which one table can be locked while others are used, as by maintenance. Its Flush
// waits for a lock for a short time only, and then fails with a Locked error.
type Locks interface {
	// FlushWaiting is Flush, but waits for locks until ctx ends.
	FlushWaiting(ctx context.Context, units []*Unit) error
	// Locked reports, for each of queues, whether another transaction keeps rows from being inserted.
	Locked(ctx context.Context, queues []string) ([]bool, error)
	// Hasten makes those of the rows of queue visible at once that are not leased, in front of all others.
	Hasten(ctx context.Context, queue string, seqs []int64) error
}

// Transactor is implemented by a [Store] whose users can have writes of their own in the
// transaction that completes a delivery. Without it deliveries are no
// [transport.Transactor].
type Transactor interface {
	// Begin gives a transaction, which outlasts ctx. Whether it is opened now or when it completes
	// is the dialect's.
	Begin(ctx context.Context) (StoreTx, error)
}

// StoreTx is a transaction of a dialect. It is used by one goroutine at a time.
// The dialect gets it back from the [transport.Tx] of a delivery with [Inner].
type StoreTx interface {
	// Complete does u, whose Verb is Delete, and commits. Where u's lease is lost
	// it sets u.Lost, rolls everything back and returns nil. Whatever it
	// returns, the transaction is over.
	Complete(ctx context.Context, u *Unit) error
	// Rollback undoes everything. Called again, or after Complete or the store's
	// Close, it does nothing.
	Rollback(ctx context.Context) error
}

// Locker is implemented by a [StoreTx] that may lock the row which it is to complete, so that nobody can change it: where
// the transaction has a snapshot to keep, a renewal of the lease would be a conflict with it. Without it leases are
// renewed all the time.
type Locker interface {
	// Completes tells, once and before the transaction is used, what it is to complete. hold is to be called before the
	// row is locked: it waits for a renewal that is under way, and from then on, until the
	// transaction is over, the lease is not renewed.
	Completes(queue string, l Lease, hold func())
}

// Namer is implemented by a [Store] whose queues have several names. Without it each name is another queue's.
type Namer interface {
	// Name is the name by which receivers know queue, which Check has passed.
	Name(queue string) string
}

// Waker is implemented by a [Store] that can tell other processes of new rows. Without
// it they find them by polling.
type Waker interface {
	// Listen calls wake with the name of each queue that another process has notified
	// of, which may be "", until ctx ends or the connection breaks; the engine then calls it again after
	// a pause. It calls ready once when it has begun to hear.
	Listen(ctx context.Context, ready func(), wake func(queue string)) error
	// Notify tells other processes that there are new rows in queues. It is called
	// apart from any transaction, at most every 50 ms for a queue, by one
	// goroutine.
	Notify(ctx context.Context, queues []string) error
}
