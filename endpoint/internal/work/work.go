// Package work has the unit of work of an attempt at a message: the operations that are sent with
// the message, the transaction, and the key under which the message is recorded as handled.
package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// Store begins and ends the transactions of units. An endpoint has one.
type Store interface {
	// Begin begins a transaction in which d is completed, or in which the outbox stores that d was
	// handled: under key, unless key is nil. Begin returns a [DatabaseError] or an [ExpiredError]
	// for an error of the database of the outbox.
	Begin(ctx context.Context, key *transport.HandledKey, d transport.Delivery) (transport.Tx, error)
	// Undo rolls the transaction of the message with an id back. A database that cannot be reached
	// does so itself.
	Undo(ctx context.Context, tx transport.Tx, id string)
}

// Unit is the work of one attempt at a message, or of its recovery. A Unit is safe for concurrent
// use: a goroutine that outlives a handler may still use the session.
type Unit struct {
	// Key is recorded with the message; nil is no key. The inbox sets Key before the handlers run.
	Key *transport.HandledKey

	// Store begins the transaction, for Delivery, whose message has the id ID.
	Store    Store
	Delivery transport.Delivery
	ID       string

	mu      sync.Mutex // guards the rest
	over    bool
	ops     []transport.Operation
	tx      transport.Tx
	failed  *Mark // of the last call that has failed with tx open, perhaps with writes
	storing error // why the database of the outbox or inbox did not do its last task
}

// Resume gives a new unit the operations and the transaction of a unit that has ended. The array of
// ops is the unit's.
func (u *Unit) Resume(ops []transport.Operation, tx transport.Tx) { u.ops, u.tx = ops, tx }

// ErrOver is returned by a unit that has ended.
var ErrOver = errors.New("the message has been handled: its session is over")

// Tx returns the transaction, and begins it at the first call.
func (u *Unit) Tx(ctx context.Context) (transport.Tx, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return nil, ErrOver
	}
	u.undoFailed(ctx)
	if u.tx != nil {
		return u.tx, nil
	}
	tx, err := u.Store.Begin(ctx, u.Key, u.Delivery)
	if err != nil {
		_, database := errors.AsType[*DatabaseError](err)
		_, expired := errors.AsType[*ExpiredError](err)
		if database || expired {
			u.storing = err
		}
		return nil, err //nolint:wrapcheck // the store names itself
	}
	u.tx, u.storing = tx, nil
	return tx, nil
}

// Fail records an error of the database of the outbox or inbox, and returns it.
func (u *Unit) Fail(err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.storing = err
	return err
}

// Failure returns the last error of the database of the outbox or inbox; nil if there was none.
func (u *Unit) Failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.storing
}

// Keep adds an operation to those that are sent with the message.
func (u *Unit) Keep(op transport.Operation) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return ErrOver
	}
	u.ops = append(u.ops, op)
	return nil
}

// Mark is the state of a unit before a call of handlers.
type Mark struct {
	handler int  // the number of the handler; AllHandlers for a call of all
	ops     int  // the number of operations
	open    bool // the transaction had begun
}

// AllHandlers is the number in the mark of a call of all handlers.
const AllHandlers = -1

var errWritesLeft = errors.New("a behavior calls next again after a failure, in a transaction that was open before the first call: " +
	"what the first call wrote cannot be undone alone; return the error, or begin the transaction behind that behavior")

// Begin starts the handler of a number, or all handlers, perhaps again. The writes of a failed call
// are rolled back if the call has begun the transaction. Otherwise the same call cannot be made
// again.
func (u *Unit) Begin(ctx context.Context, handler int) (Mark, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.undoFailed(ctx)
	if u.failed != nil && u.failed.handler == handler {
		return Mark{}, errWritesLeft
	}
	return Mark{handler, len(u.ops), u.tx != nil}, nil
}

// Drop removes the operations since m, after a handler failed: a behavior may call the handlers
// again.
func (u *Unit) Drop(m Mark) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ops = u.ops[:min(m.ops, len(u.ops))]
	if u.tx != nil {
		u.failed = &m
	}
}

// UndoFailed rolls back the writes of a handler whose error a behavior has dropped, if the handler
// has begun the transaction.
func (u *Unit) UndoFailed(ctx context.Context) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.undoFailed(ctx)
}

// undoFailed rolls the transaction back if a failed call has begun it. Called with mu held.
func (u *Unit) undoFailed(ctx context.Context) {
	if u.failed == nil || u.failed.open || u.tx == nil {
		return
	}
	tx := u.tx
	u.tx, u.failed = nil, nil
	u.Store.Undo(ctx, tx, u.ID)
}

// End closes the unit and returns its operations, without those of cancelled timers, and its
// transaction, if any.
func (u *Unit) End() ([]transport.Operation, transport.Tx) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	return withoutCancelled(u.ops), u.tx
}

// Rollback closes the unit and undoes its transaction, if there is one.
func (u *Unit) Rollback(ctx context.Context) {
	if _, tx := u.End(); tx != nil {
		u.Detach()
		u.Store.Undo(ctx, tx, u.ID)
	}
}

// Detach takes the transaction, which is over, from the unit.
func (u *Unit) Detach() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tx = nil
}

// Begun returns the transaction of the unit, if there is one, and nil otherwise.
func (u *Unit) Begun() transport.Tx {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tx
}

// IsOver reports whether the unit has ended.
func (u *Unit) IsOver() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.over
}

// Empty reports whether the unit has neither operations nor a transaction.
func (u *Unit) Empty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.ops) == 0 && u.tx == nil
}

// Cancelled returns the stored names of the timers that the handlers have cancelled and not set
// again.
func (u *Unit) Cancelled() (names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.ContainsFunc(u.ops, IsTimer) {
		return nil
	}
	for name, at := range lastOfTimers(u.ops) {
		if u.ops[at].Message == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// IsConflict reports whether an error wraps [transport.ErrConflict]. The error is the user's, and
// may wrap itself.
var IsConflict = recoverability.Is(transport.ErrConflict)

// Conflict reports whether err says that the transaction lost a conflict. The unit has ended.
func (u *Unit) Conflict(err error) bool {
	if IsConflict(err) {
		return true
	}
	_, tx := u.End()
	detector, ok := tx.(transport.ConflictDetector)
	return ok && detector.Conflict(err)
}

// CommitError is the error of the commit that stores the work. Other errors of the outbox and inbox
// are those of statements before the commit.
type CommitError struct{ Err error }

func (e *CommitError) Error() string { return e.Err.Error() }

func (e *CommitError) Unwrap() error { return e.Err }

// FaultType returns the name of the type in fault headers.
func (e *CommitError) FaultType() string { return "*endpoint.commitError" }

// DatabaseError is the error of the begin of a transaction in the outbox. Fault headers have the
// type of the error that it marks.
type DatabaseError struct{ errtree.Mark }

// ExpiredError is the error of the begin of a transaction in the outbox after the handler's context
// has ended, as by a time limit. The error says nothing about the database.
type ExpiredError struct{ Err error }

func (e *ExpiredError) Error() string { return e.Err.Error() }

func (e *ExpiredError) Unwrap() error { return e.Err }

// FaultType returns the name of the type in fault headers.
func (e *ExpiredError) FaultType() string { return "*endpoint.expiredError" }

// WithAdvice adds advice to the error of a missing right to the tables of the outbox or inbox.
func WithAdvice(err error) error {
	if errors.Is(err, transport.ErrDenied) {
		return fmt.Errorf("%w: grant SELECT, INSERT, UPDATE and DELETE on the tables of the outbox and the inbox", err)
	}
	return err
}

// An operation with a name sets a timer, and removes the timer if the operation has no message.

// IsTimer reports whether an operation sets or removes a timer.
func IsTimer(op transport.Operation) bool { return op.Name != "" }

// withoutCancelled returns the messages in ops: of the timers with one name the last, unless the
// timer was cancelled after that.
func withoutCancelled(ops []transport.Operation) []transport.Operation {
	if !slices.ContainsFunc(ops, IsTimer) {
		return ops
	}
	last := lastOfTimers(ops)
	var kept []transport.Operation
	for i, op := range ops {
		if op.Name == "" || op.Message != nil && last[op.Name] == i {
			kept = append(kept, op)
		}
	}
	return kept
}

// lastOfTimers returns the index of the last operation of each name.
func lastOfTimers(ops []transport.Operation) map[string]int {
	last := map[string]int{}
	for i := range ops {
		if ops[i].Name != "" {
			last[ops[i].Name] = i
		}
	}
	return last
}
