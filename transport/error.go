package transport

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNoQueue is returned if a queue does not exist, or accepts no messages.
	ErrNoQueue = errors.New("no such queue")
	// ErrLeaseLost is returned by a settle after the end of the lease or of the delivery's
	// connection. The message is delivered again, unless the driver recognizes that it was
	// completed.
	ErrLeaseLost = errors.New("lease lost")
	// ErrOutcomeUnknown is returned if the connection broke before the broker answered: the
	// operation may have been accepted.
	ErrOutcomeUnknown = errors.New("outcome unknown: the connection broke before the broker answered")
	// ErrUnreachable is returned if nothing was sent because there is no connection to the broker
	// at the moment, or it accepts nothing: the operation was neither accepted nor refused, and may
	// be tried again.
	ErrUnreachable = errors.New("the broker cannot be reached, or takes nothing at the moment: nothing was sent")
	// ErrFull is returned if the broker refuses a message because its queue is full or has failed:
	// nothing was done. The queue may accept the same message later. Not every driver recognizes
	// that.
	ErrFull = errors.New("the queue is full, or has failed")
	// ErrDenied is returned if the user of the connection has no right to the operation: nothing
	// was done. It may succeed when the right is granted. Not every driver recognizes that.
	ErrDenied = errors.New("the user of the connection lacks a right")
	// ErrTooLarge matches every [*TooLargeError] in errors.Is.
	ErrTooLarge = errors.New("message too large")
	// ErrContent is returned if the broker or the driver refuses a message because of the number,
	// the text or the encoding of its headers, or of a property: nothing was done. No queue accepts
	// the message as it is, and another copy with other headers may be accepted. [TooLargeError] is
	// for a size. Not every driver recognizes that.
	ErrContent = errors.New("the content of the message is refused")
	// ErrNotFound is returned by Cancel and Take if the message does not exist any more.
	ErrNotFound = errors.New("not found")
	// ErrDeliveryLimit is returned by Browse, Next and Take if reading counts as a delivery, and a
	// further one could use up those that a limit of the queue leaves to some message: the broker
	// would drop or dead-letter it. The error has advice.
	ErrDeliveryLimit = errors.New("reading would use up deliveries of a queue that limits them")
	// ErrClosed is returned after Close by every method of a Conn and of values that were opened
	// from it.
	ErrClosed = errors.New("transport closed")
)

// TooLargeError is returned for a message over a limit of the broker.
type TooLargeError struct {
	What string // "body", "headers", "header count" or "message"
	Size int    // bytes measured, or headers counted
	Max  int    // bytes allowed, or headers
}

func (e *TooLargeError) Error() string {
	if e.What == "header count" {
		return fmt.Sprintf("%d headers are over the limit of %d", e.Size, e.Max)
	}
	return fmt.Sprintf("%s of %d bytes is over the limit of %d", e.What, e.Size, e.Max)
}

// Is reports whether target is [ErrTooLarge].
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// BusyError is returned for an operation on a queue that accepts no messages at the moment, such as
// one whose table is locked: nothing was sent. It matches [ErrUnreachable] in errors.Is.
type BusyError struct {
	Queue  string
	Reason string
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("queue %q takes no messages at the moment (nothing was sent): %s", e.Queue, e.Reason)
}

// Is reports whether target is [ErrUnreachable].
func (e *BusyError) Is(target error) bool { return target == ErrUnreachable }

// NameError is returned for a queue that no broker of this kind can have: its name or address is
// malformed, too long or has a character that is not allowed. It matches [ErrNoQueue] in errors.Is.
type NameError struct {
	Err error // names the queue and the rule
}

func (e *NameError) Error() string { return e.Err.Error() }
func (e *NameError) Unwrap() error { return e.Err }

// Is reports whether target is [ErrNoQueue].
func (e *NameError) Is(target error) bool { return target == ErrNoQueue }

// DispatchError has the failed operations of a dispatch; the others were accepted.
type DispatchError struct {
	// Ops are the failed ones, in order. Never empty.
	Ops []OpError
	// Total is the number of operations of the dispatch.
	Total int
}

// OpError is one failed operation.
type OpError struct {
	Index int // in the slice given to Dispatch
	Err   error
}

func (e *DispatchError) Error() string {
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "dispatch: %d of %d operations failed", len(e.Ops), e.Total)
	for i, op := range e.Ops {
		if i == shown {
			b.WriteString("; …")
			break
		}
		fmt.Fprintf(&b, "; operation %d: %v", op.Index, op.Err)
	}
	return b.String()
}

// Unwrap returns the errors of the operations, for errors.Is and errors.As.
func (e *DispatchError) Unwrap() []error {
	errs := make([]error, len(e.Ops))
	for i, op := range e.Ops {
		errs[i] = op.Err
	}
	return errs
}

// FailAll returns the error of a dispatch whose operations all failed with err: a [*DispatchError],
// or nil if err is nil. Without operations it returns err.
func FailAll(total int, err error) error {
	if err == nil || total == 0 {
		return err
	}
	e := &DispatchError{Ops: make([]OpError, total), Total: total}
	for i := range e.Ops {
		e.Ops[i] = OpError{Index: i, Err: err}
	}
	return e
}

// DeadLetteredError describes why the broker moved a message to its dead-letter queue. The handler
// of a [Satellite] returns it, and the endpoint moves the message to its error queue.
type DeadLetteredError struct {
	Queue  string // the queue before; "" if the broker does not report it
	Reason string // in the broker's words
	Count  int    // the number of times it was moved from there
}

func (e *DeadLetteredError) Error() string {
	if e.Reason == "" {
		return "dead-lettered by the broker, which does not say why"
	}
	return fmt.Sprintf("dead-lettered by the broker in queue %q: %s, %d time(s)", e.Queue, e.Reason, max(1, e.Count))
}

// FaultClass returns the class of the fault in the error queue.
func (e *DeadLetteredError) FaultClass() string { return "dead-lettered" }
