package resilience

import "fmt"

// Use applies a policy to messages, in a rule of package recoverability. The zero Use applies none.
// The mode is that of the retries: both modes of a policy with a Timeout alone do the same.
type Use struct {
	Policy Policy
	Mode   Mode
}

// Mode is the way in which the retries of a [Use] are made.
type Mode int

const (
	// InlineMode makes the retries within one delivery of the message. It waits in the memory of
	// the process.
	InlineMode Mode = iota + 1
	// DeferredMode makes each retry by a delayed copy of the message, which another process may
	// receive.
	DeferredMode
)

// String returns the name of the mode.
func (m Mode) String() string {
	switch m {
	case InlineMode:
		return "inline"
	case DeferredMode:
		return "deferred"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Inline applies a policy within the delivery of a message: for short delays.
func Inline(p Policy) Use { return Use{p, InlineMode} }

// Deferred applies a policy by delayed copies of the message: for long delays, which survive a
// restart of the process.
func Deferred(p Policy) Use { return Use{p, DeferredMode} }
