// Package recoverability decides on failed messages: whether a message is retried at once, retried
// later, or moved to the error queue. It reads no clock and does no I/O. The endpoint carries out
// the decision.
package recoverability

import (
	"fmt"
	"time"
)

// Action is the decision on a failed message: [Retry], [RetryInline], [Delay], [MoveToError],
// [DeadLetter] or [Discard].
//
//sumtype:decl
type Action interface {
	isAction()
	fmt.Stringer
}

// Retry makes the message available again at once.
type Retry struct{}

// RetryInline makes another attempt within the same delivery after For, with a session, a
// transaction and messages of its own. The message has no slot while it waits, and stays leased. In
// quarantine, with transaction mode None, and where the broker would deliver the message again
// before, it is a MoveToError.
type RetryInline struct{ For time.Duration }

// Delay sends the message to its queue again, due after For.
type Delay struct{ For time.Duration }

// MoveToError moves the message to an error queue, with headers that describe the failure. An empty
// Queue is the configured one.
type MoveToError struct{ Queue string }

// DeadLetter moves the message to the broker's dead-letter queue. Where there is none it is a
// MoveToError.
type DeadLetter struct{ Reason string }

// Discard logs and completes the message.
type Discard struct{ Reason string }

func (Retry) isAction()       {}
func (RetryInline) isAction() {}
func (Delay) isAction()       {}
func (MoveToError) isAction() {}
func (DeadLetter) isAction()  {}
func (Discard) isAction()     {}

func (Retry) String() string         { return "retry" }
func (r RetryInline) String() string { return fmt.Sprintf("retry inline after %v", r.For) }
func (d Delay) String() string       { return fmt.Sprintf("delay for %v", d.For) }
func (d DeadLetter) String() string  { return fmt.Sprintf("dead-letter: %s", d.Reason) }
func (d Discard) String() string     { return fmt.Sprintf("discard: %s", d.Reason) }

func (m MoveToError) String() string {
	if m.Queue == "" {
		return "move to the error queue"
	}
	return fmt.Sprintf("move to error queue %q", m.Queue)
}
