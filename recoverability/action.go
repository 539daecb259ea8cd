// Package recoverability decides what becomes of a message that failed: try it
// again at once, later, or give it up to the error queue. It is pure: it reads no
// clock and does no I/O. The endpoint asks it and carries the answer out.
package recoverability

import (
	"fmt"
	"time"
)

// Action is what to do with a failed message: one of [Retry], [Delay],
// [MoveToError], [DeadLetter] and [Discard].
type Action interface {
	isAction()
	fmt.Stringer
}

// Retry makes the message available again at once.
type Retry struct{}

// Delay sends the message to its queue again, due after For.
type Delay struct{ For time.Duration }

// MoveToError moves the message to an error queue, with headers that tell what
// happened. An empty Queue is the configured one.
type MoveToError struct{ Queue string }

// DeadLetter hands the message to the broker's own dead-letter queue. Where there
// is none it becomes MoveToError.
type DeadLetter struct{ Reason string }

// Discard drops the message: it is logged and gone.
type Discard struct{ Reason string }

func (Retry) isAction()       {}
func (Delay) isAction()       {}
func (MoveToError) isAction() {}
func (DeadLetter) isAction()  {}
func (Discard) isAction()     {}

func (Retry) String() string        { return "retry" }
func (d Delay) String() string      { return fmt.Sprintf("delay for %v", d.For) }
func (d DeadLetter) String() string { return fmt.Sprintf("dead-letter: %s", d.Reason) }
func (d Discard) String() string    { return fmt.Sprintf("discard: %s", d.Reason) }

func (m MoveToError) String() string {
	if m.Queue == "" {
		return "move to the error queue"
	}
	return fmt.Sprintf("move to error queue %q", m.Queue)
}
