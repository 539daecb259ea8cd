package tablequeue

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/transport"
)

// Store is a SQL dialect, in parts: it keeps queues as tables and executes the engine's statements.
// The methods of its parts are safe for concurrent use, and none is called after Close.
//
// The rows of a queue have the columns
//
//	seq             an integer that grows with every insert, the key
//	id              the id of the row: a UUID, or text. A message's identity is its header; id is that of a row without one
//	headers         a JSON object of strings, text
//	body            bytes; null, which others may insert, is an empty body
//	visible_at      when it may be claimed: now, the end of a delay, or of a lease
//	expires         when it expires, or null (expires_at on SQLite)
//	delivery_count  the number of claims of the row
//	lease_id        the number of the claim that holds it, or null
//	lease_owner     the owner of that claim, or null
//	last_error      the reason of the last retry, or null
//
// and an index on (visible_at, seq). All but headers have defaults, so that other programs can
// insert with plain SQL. A queue with timers also has
//
//	name            the hash of the message's name, or null
//
// and a unique index on it. Every "now" below is the database's clock, never this process's;
// durations are exact to the microsecond where the database can store that.
//
// Queues are given by their short names if the Store has an Addresser.
//
// Errors have the dialect's name and the attempted operation. One about a missing table wraps
// [transport.ErrNoQueue]. Classify classifies them.
//
// The fields up to Close are required. Each of the others is nil if the dialect has no such part.
type Store struct {
	Queues        Queues
	Browsing      Browsing
	Topology      Topology
	Subscriptions Subscriptions
	Transactions  Transactions
	Inboxes       Inboxes

	// Classify returns the class of an error of Claim, Flush, Renew, Take or Complete, also of a
	// wrapped one. An error that is not of the store is Failed. It is never called with nil.
	Classify func(err error) Class
	// Close closes the connections, and rolls open transactions back. The engine calls it once,
	// after all other calls.
	Close func() error

	// Addresser has the addresses of queues. nil: a queue has one name.
	Addresser transport.Addresser
	// Timed has the clock of the database. nil: the clock of this process is also the database's.
	Timed Timed
	// Waker notifies other processes of new rows. nil: other processes poll.
	Waker Waker
	// Sweeper removes expired rows. nil: an expired row is removed only when it is claimed.
	Sweeper Sweeper
	// Orphaner ends the leases of claims whose answers were lost. nil: their rows become visible
	// when the leases run out.
	Orphaner Orphaner
	// Hastener makes waiting rows visible. nil: deferred messages are delivered when they are due,
	// and messages that wait for the end of a lock when their wait ends.
	Hastener Hastener
	// Locks finds locked tables. nil: the engine looks for no locked table, and no write waits for
	// a lock longer than Flush does.
	Locks Locks
	// FaultFinder finds the destination that is the cause of an error. nil: of several destinations
	// the cause stays unknown, and only the units of the batch fail.
	FaultFinder FaultFinder
	// Outages detects a database that takes no writes. nil: no error of a handler's statement means
	// an outage.
	Outages Outages
	// Examiner compares tables with the installer's. nil: Exists alone decides whether a table
	// differs.
	Examiner Examiner
	// Warner foresees failures. nil: there are no warnings about the tables of queues.
	Warner Warner
	// Records stores records. nil: the use of a record is an error, and so is an inspection.
	Records Records
	// Foreign knows the queues of NServiceBus. nil: the header with the destination has no meaning,
	// and no error of the store wraps [ErrNoDelays].
	Foreign Foreign
	// DelayedTables moves delayed messages of NServiceBus. nil: their tables are not read.
	DelayedTables DelayedTables
	// HandingOver hands queues over to NServiceBus. nil: HandOver is an error.
	HandingOver HandingOver
}

// Queues is the part of a [Store] that messages go through.
type Queues interface {
	// Check returns a [*transport.NameError] for an impossible queue name. It does no I/O. It is
	// called for every operation, and so is cheap for a known name.
	Check(queue string) error

	// Claim leases up to c.Limit visible rows, the longest visible first, in one statement, and
	// appends them to into in any order. It increments delivery_count, and sets visible_at to now +
	// c.For, lease_id to c.Lease and lease_owner to c.Owner. It skips rows that another claim has
	// locked. It never filters by count.
	//
	// It claims expired rows like others, with Expired set (their headers and body may be left
	// out): the engine removes them.
	//
	// When there is no visible row, next is the time until the first one becomes visible (leases
	// count), or 0 when the table is empty.
	Claim(ctx context.Context, c Claim, into []Claimed) (rows []Claimed, next time.Duration, err error)

	// Flush executes units in one transaction, and in as few statements as the dialect can. It
	// skips a unit whose lease is no longer the row's: it inserts none of the unit's Rows, and sets
	// Lost; that is no error. On an error no unit is executed, unless the error is Unknown. Flush
	// sets the Seq of rows with WantSeq.
	//
	// The rows of a unit for one queue are inserted in their order. The store keeps no reference to
	// the units.
	Flush(ctx context.Context, units []*Unit) error

	// InsertIn inserts rows in tx, a transaction of the same database that its caller has begun and
	// ends: all, or on an error none. After an error tx can be used, unless its connection is lost
	// or the database has ended it; that it does not where a row is Published, or for a queue that
	// no InsertIn of the store has inserted rows into. Receivers, also of this process, are
	// notified soon after tx has committed. Any other tx is an error that names the type it wants,
	// also without rows.
	InsertIn(ctx context.Context, tx any, rows []Row) error

	// Renew makes the leases of queue end at now + d, also those that have run out while no other
	// claim has taken the row. lost has an entry per lease: true where the lease is no longer the
	// row's.
	Renew(ctx context.Context, queue string, leases []Lease, d time.Duration) (lost []bool, err error)

	// Abandon makes the rows of queue that owner has leased visible now, and keeps their counts. No
	// lease lasts longer than d, so that only rows visible until now + d have to be read.
	Abandon(ctx context.Context, queue, owner string, d time.Duration) error

	// Cancel deletes the row if it has never been claimed, and reports whether it did.
	Cancel(ctx context.Context, queue string, seq int64) (bool, error)
}

// Browsing is the part of a [Store] with which tools list rows and remove them, also those of
// foreign tables.
type Browsing interface {
	// Last is the highest seq in queue, 0 when it is empty.
	Last(ctx context.Context, queue string) (int64, error)
	// Browse reads the rows of a page by seq, leased and delayed ones too, but none that
	// have expired. It may end the page where the bodies so far are larger than [MaxPage].
	Browse(ctx context.Context, p Page) ([]Claimed, error)
	// Purge deletes the visible rows of queue, in as few statements as the database allows, and
	// returns their number.
	Purge(ctx context.Context, queue string) (int64, error)
	// Take executes u, whose Verb is Delete and whose RowID is that of the row, on a row that is
	// not leased. It sets Lost when the row is not visible. The number of u's lease is unique, so
	// that a store can lease the row in the same transaction.
	Take(ctx context.Context, u *Unit) error
}

// Page is a part of a queue: at most Limit rows with After < seq <= Last.
type Page struct {
	Queue       string
	After, Last int64
	Limit       int
}

// Topology is the part of a [Store] that creates, inspects and removes tables.
type Topology interface {
	// Exists fails with [transport.ErrNoQueue] when there is no such queue, and with an
	// [*UnfitError] when a table of that name is not a queue of this version, such as a foreign
	// one.
	Exists(ctx context.Context, queue string) error
	// Missing reports, for each of queues, whether there is no table to send to. Check has passed
	// them.
	Missing(ctx context.Context, queues []string) ([]bool, error)
	// Install creates the missing queues and the table of subscriptions, and does not change those
	// that exist. Several processes may install at once.
	Install(ctx context.Context, plan transport.Plan) error
	// Remove deletes the queues, their messages and their subscriptions: all, or on an error none.
	// A queue that does not exist is no error; a table that is not a queue of the engine is an
	// [*UnfitError]. Check has passed the names.
	Remove(ctx context.Context, queues []string) error
	// List returns the names of the queues.
	List(ctx context.Context) ([]string, error)
	// Inspect returns what [transport.Inspector] does of one queue. Rows that have expired do not
	// count.
	Inspect(ctx context.Context, queue string) (transport.QueueStats, error)
}

// ErrNotInstalled is wrapped by the errors of [Subscriptions] where the table of subscriptions does
// not exist.
var ErrNotInstalled = errors.New("the table of subscriptions is missing: run the installer")

// UnfitError says why a table that exists is not a queue that this version can receive from.
type UnfitError struct {
	Reason string
	// Foreign reports whether the table is one of NServiceBus: messages can be sent to it, browsed
	// and taken.
	Foreign bool
}

func (e *UnfitError) Error() string { return e.Reason }

// Subscriptions is the part of a [Store] with the table of subscriptions.
type Subscriptions interface {
	// Subscribe and Unsubscribe are those of [transport.Subscriber].
	Subscribe(ctx context.Context, queue string, types []string) error
	Unsubscribe(ctx context.Context, queue string, types []string) error
	// Subscriptions returns all of them, some perhaps several times. It fails with
	// [ErrNotInstalled] where the table is missing.
	Subscriptions(ctx context.Context) ([]Subscription, error)
}

// Subscription has messages that are published under Type sent to Queue.
type Subscription struct{ Type, Queue string }

// Claim is a request for rows.
type Claim struct {
	Queue string
	Limit int           // at least 1
	Lease int64         // the new lease_id: random, never 0
	For   time.Duration // of the lease
	Owner string        // of the claim
	// MaxBytes bounds the headers and bodies of the rows together. The first row is claimed
	// whatever its size. 0 is no bound.
	MaxBytes int64
}

// Claimed is a row that has been leased.
type Claimed struct {
	Seq     int64
	ID      string // of the row
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

// Verb is the operation on a leased row.
type Verb int8

const (
	// Send settles no row: the unit has Rows only, and Queue and Lease are not used.
	Send Verb = iota
	// Delete removes the row.
	Delete
	// Retry makes the row visible at now + After, sets last_error to Note, and ends the lease.
	Retry
	// Release makes the row visible at now + After, decrements delivery_count, and ends the lease.
	Release
	// Record settles no row: the unit has Rows and perhaps a Key, and Queue and Lease are not used.
	// Unlike those of Send, all rows are inserted or none.
	Record
)

// Unit is an atomic change: a row is settled, and messages are sent with it.
type Unit struct {
	Verb  Verb
	Queue string
	Lease Lease
	After time.Duration // of Retry and Release
	Note  string        // of Retry; empty leaves last_error as it is
	Rows  []Row         // of Send and Delete
	RowID string        // of Take: the id with which the row was browsed

	// LeaseFor and LeaseOwner are those of the rows of Record that are inserted with a lease.
	LeaseFor   time.Duration
	LeaseOwner string

	// Key, of Delete and Record, is recorded in Inbox with the unit. nil: none is.
	Key   *transport.HandledKey
	Inbox string

	// Records, of a transaction, are written with the unit.
	Records []*stateset.Change

	// Lost is set by Flush when the lease was no longer the row's, and the unit was not executed.
	Lost bool
	// Handled is set by Flush when Key had been recorded before, and the unit was not executed. Of
	// two units of a Flush with one id, at most one is executed. Flush waits for a transaction that
	// is recording the id.
	Handled bool

	of *outcome // of the unit, or of the unit that this is a part of
}

// outcome is the result of a unit.
type outcome struct {
	failed []transport.OpError // rows that were refused, by operation
	err    error               // of the unit as a whole

	diverted []*Unit // parts of the unit that the detour is to write
}

// Row is a message to be inserted.
type Row struct {
	Queue   string // Check has passed it
	ID      string // the message's; a store may give the row another
	Headers []byte // JSON, UTF-8
	Body    []byte // nil is an empty body, which is not stored as null where other programs read the table
	// At is the time at which the row becomes visible, but not before now. Zero: now + After.
	At    time.Time
	After time.Duration
	// TTL is the time from when the row becomes visible until it expires. 0: never.
	TTL time.Duration
	// Op is the index of the operation that this row is of. The store ignores it.
	Op int

	// Name is the hash of the operation's name, in a queue with timers: the row replaces the one
	// that has this name, also a leased one, whose lease ends. Zero: none. No two rows of a unit
	// for one queue have the same name. Stores insert named rows in the order of their names, so
	// that no two transactions wait for each other.
	Name [16]byte
	// Removes, of a named row, reports whether the row is not inserted: the one that it would
	// replace is removed.
	Removes bool

	// Published reports whether the row is a copy for a subscriber, whose queue may be gone.
	Published bool
	// WantSeq makes Flush set Seq to that of the inserted row.
	WantSeq bool
	Seq     int64

	// Lease, of a row of Record, is the number of the lease with which the row is inserted, as one
	// that was claimed once: it becomes visible at now + LeaseFor of the unit. No other row has
	// this number. Flush and Complete then set Seq. 0: the row is not leased, as always in a store
	// that is opened without LeasedInserts.
	Lease int64
}

// Named reports whether the row has a name.
func (r *Row) Named() bool { return r.Name != [16]byte{} }

// size returns the bytes of the headers and bodies of u.
func (u *Unit) size() int {
	n := 0
	for i := range u.Rows {
		n += len(u.Rows[i].Headers) + len(u.Rows[i].Body)
	}
	return n
}

// HasNames reports whether a row of the unit has a name. A commit that sets the Seq of rows may run
// at the same time.
func (u *Unit) HasNames() bool {
	for i := range u.Rows { // without a copy of the row, which has the Seq
		if u.Rows[i].Named() {
			return true
		}
	}
	return false
}

// Timed reports whether the row is delayed or expires.
func (r *Row) Timed() bool { return r.After > 0 || r.TTL > 0 || !r.At.IsZero() }

// Class is the meaning of an error of a [Store] for the engine.
type Class int8

const (
	// Failed means that the batch was not executed, for another reason than those below. All its
	// units fail.
	Failed Class = iota
	// Unavailable means that the database is not reached, or does not write at the moment. The
	// batch was not executed, and all its units fail.
	Unavailable
	// Refused means that the database refuses a part of the batch, such as a row for a table that
	// does not exist. The batch was not executed; its other units may succeed without that part.
	Refused
	// Conflict means a deadlock or the like. The batch was not executed, and may succeed when it is
	// repeated.
	Conflict
	// Locked means that a lock was not available in time. The batch was not executed.
	Locked
	// Impeded means that the database cannot execute a part of the batch at the moment, as when the
	// disk of one tablespace is full. The batch was not executed; its other units may succeed
	// without that part.
	Impeded
	// Unknown means that the connection broke, or ctx ended, after the statement was sent: the
	// batch may have been executed.
	Unknown
)

// StatementError is an error of Flush because of one statement, for errors of the classes [Locked]
// and [Impeded]. Without it the engine finds the cause by writing halves of the batch.
type StatementError struct {
	Units []*Unit // that the statement writes
	Queue string  // of a statement that only inserts: its table's queue, to which other units of the batch may send too
	Err   error
}

func (e *StatementError) Error() string { return e.Err.Error() }

func (e *StatementError) Unwrap() error { return e.Err }

// ErrWrites is wrapped by an error of [StoreTx].Complete that the messages of the unit have not
// caused: they were inserted, and what the handler has written cannot be committed.
var ErrWrites = errors.New("the handler's writes could not be committed")

// ErrNoTimers is wrapped by the error of a named row for a queue without timers. A store whose
// tables may lack what named rows need returns it from Flush, Complete and InsertIn.
var ErrNoTimers = errors.New(`it has no timers: run the endpoint's installer, or the script that "holdfast sql script" prints`)

// ErrNoDelays is wrapped by the error of a [Store] for a delayed row whose queue is foreign.
// Nothing was written, and [Foreign].Foreign reports true for that queue from then on. Classify
// returns Refused for it.
var ErrNoDelays = errors.New("its table, one of NServiceBus's, takes no delayed messages")

// FaultFinder is the part of a [Store] that finds out which of several destinations is the cause of
// an error.
type FaultFinder interface {
	// FailingQueue inserts the rows of units in a transaction that is rolled back, and returns the
	// queue at whose rows that fails, or "".
	FailingQueue(ctx context.Context, units []*Unit) string
}

// Orphaner is the part of a [Store] whose answer to a claim may get lost, so that rows are leased
// without a delivery.
type Orphaner interface {
	// AbandonClaims makes the rows of queue with any of the lease numbers visible now, and keeps
	// their counts. As with Abandon, no lease lasts longer than d.
	AbandonClaims(ctx context.Context, queue string, leases []int64, d time.Duration) error
}

// Hastener is the part of a [Store] that makes rows visible before they are due.
type Hastener interface {
	// Hasten makes those of the rows of queue that are not leased visible at once, before all
	// others.
	Hasten(ctx context.Context, queue string, seqs []int64) error
}

// Locks is the part of a [Store] in which one table can be locked, as by maintenance, while others
// are used. Flush of the Store waits for a lock for a short time, and then fails with a Locked
// error. The Store has a [Hastener] too.
type Locks interface {
	// FlushWaiting is Flush, but waits for a lock for a second.
	FlushWaiting(ctx context.Context, units []*Unit) error
	// Locked reports, for each of queues, whether another transaction keeps rows from being
	// inserted.
	Locked(ctx context.Context, queues []string) ([]bool, error)
}

// Foreign is the part of a [Store] that can send to queues of NServiceBus.
//
// The engine keeps a delayed message for a foreign queue in the queue with [ForwardsSuffix] beside
// that of the endpoint, with the address of the destination. The Store has an Addresser too.
type Foreign interface {
	// Foreign reports whether queue, which Check has passed, is known to be one of NServiceBus. It
	// does no I/O.
	Foreign(queue string) bool
}

// Transactions is the part of a [Store] with transactions in which users write, and a delivery is
// completed or a key is recorded.
type Transactions interface {
	// Begin returns a transaction, which outlasts ctx. The dialect decides when it opens.
	Begin(ctx context.Context) (StoreTx, error)
}

// StoreTx is a transaction of a dialect. It is used by one goroutine at a time. [Inner] returns it
// for the [transport.Tx] of a delivery.
type StoreTx interface {
	// Complete executes u, whose Verb is Delete or Record, and commits. When u's lease is lost it
	// sets u.Lost, or when u's key had been recorded u.Handled, rolls back and returns nil.
	// Afterwards the transaction is over, also after an error.
	Complete(ctx context.Context, u *Unit) error
	// Rollback undoes the transaction. Called again, or after Complete or the store's Close, it
	// does nothing.
	Rollback(ctx context.Context) error
}

// Breakable is implemented by a [StoreTx] whose connection may break. Without it an error of a
// statement then fails the message.
type Breakable interface {
	// Broken reports whether the connection broke before the transaction was to be completed, so
	// that nothing was written.
	Broken() bool
}

// Locker is implemented by a [StoreTx] that may lock the row which it completes: where the
// transaction keeps a snapshot, a renewal of the lease would be a conflict. Without it leases are
// always renewed.
type Locker interface {
	// Completes is called once, before the transaction is used, with the row that it completes. The
	// store calls hold before it locks the row. hold waits for a renewal in progress; after it the
	// lease is not renewed until the transaction is over.
	Completes(queue string, l Lease, hold func())
}

// Waker is the part of a [Store] that notifies other processes of new rows.
type Waker interface {
	// Listen calls wake with the queue, which may be "", of each notification of another process,
	// until ctx ends or the connection breaks. The engine then calls it again after a pause. Listen
	// calls ready once, when notifications begin to arrive.
	Listen(ctx context.Context, ready func(), wake func(queue string)) error
	// Notify notifies other processes of new rows in queues. One goroutine calls it, outside of
	// transactions, at most every 50 ms.
	Notify(ctx context.Context, queues []string) error
}

// Inboxes is the part of a [Store] that records the ids of handled messages. An inbox has the
// columns
//
//	key  16 bytes, the primary key
//	sum  the checksum of the message
//	at   when the key was recorded, by the database's clock
//
// and an index on at. Errors about a missing inbox wrap [transport.ErrNoQueue]. The installer
// creates those of [transport.Plan].Inboxes, and Remove drops one that is named.
type Inboxes interface {
	// FindHandled returns the state of each key, in their order.
	FindHandled(ctx context.Context, inbox string, keys []transport.HandledKey) ([]transport.HandledState, error)
	// DueForForgetting reports whether no process has removed keys from inbox for pause, and marks
	// it: one process at a time is told so.
	DueForForgetting(ctx context.Context, inbox string, pause time.Duration) (bool, error)
	// Forget removes up to limit keys that were recorded more than age ago, the oldest first, and
	// returns their number.
	Forget(ctx context.Context, inbox string, age time.Duration, limit int) (int64, error)
	// ForgetKeys removes keys by their ID, and returns the number of those that were there.
	ForgetKeys(ctx context.Context, inbox string, keys []transport.HandledKey) (int64, error)
	// InspectInbox returns the size of an inbox, for which it need not count all rows.
	InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error)
	// InboxState fails with [transport.ErrNoQueue] when there is no such inbox, and with an
	// [*UnfitError] when the table is none of this version.
	InboxState(ctx context.Context, inbox string) error
}

// Records is the part of a [Store] that stores records. The transactions of the Store are
// [RecordTx]s. The table of records has the columns
//
//	id         of the record, the primary key
//	kind, key  the name
//	version    the number of transactions that have saved it
//	status     the number of its [transport.RecordStatus]
//	state      text, null in an ended record
//	meta       text or null
//	started    when it was saved first, by the database's clock
//	changed    when it was saved last
//	forget_at  when an ended record is to be removed; null in an active one
//
// and indexes on (kind, key), and on forget_at where that is not null. Errors about a missing table
// wrap [transport.ErrNoQueue]. The installer creates it for a [transport.Plan] with Records, and
// nothing removes it.
type Records interface {
	// DueForForgettingRecords reports whether no process has removed ended records for pause, and
	// marks that: one process at a time is told so.
	DueForForgettingRecords(ctx context.Context, pause time.Duration) (bool, error)
	// ForgetRecords removes up to limit ended records whose time is over, the oldest first, and
	// returns their number. It skips those that are locked.
	ForgetRecords(ctx context.Context, limit int) (int64, error)
	// RecordsState fails with [transport.ErrNoQueue] when there is no table of records, and with an
	// [*UnfitError] when the table is none of this version.
	RecordsState(ctx context.Context) error

	// InspectRecords, Records and Record are those of [transport.StateInspector].
	InspectRecords(ctx context.Context, kind string) (transport.RecordStats, error)
	Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error)
	Record(ctx context.Context, id transport.RecordID) (transport.Record, error)
}

// RecordTx is implemented by a [StoreTx] of a store with [Records]. Complete writes Unit.Records
// too.
type RecordTx interface {
	// LoadRecord returns a record. Until the transaction is over no other one changes it, or else
	// Complete fails with a Conflict. Where there is no record it fails with
	// [transport.ErrNoRecord] if create is nil, and otherwise returns a new one, with version 0,
	// which no other transaction can create until this one is over; or else Complete fails with a
	// Conflict. LoadRecord waits for locks for [RecordWait], and then fails with a Locked error.
	// The engine calls it once for each record.
	LoadRecord(ctx context.Context, id transport.RecordID, create *transport.RecordName) (transport.Record, error)
}

// RecordWait is the time for which a transaction waits for a record that another one has locked.
const RecordWait = 5 * time.Second
