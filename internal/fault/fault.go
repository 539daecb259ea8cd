// Package fault does the arithmetic of failed messages: the headers that describe a failure, the
// counts in these headers and the history of failures. Package copies chooses the headers of a copy
// for an error queue. The package reads no clock and does no I/O.
package fault

import (
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/recoverability"
)

// maxText bounds the error text and the stack in a fault header, in bytes.
const maxText = 16 << 10

// Host is where a message failed.
type Host struct {
	Endpoint, Machine, HostID, DisplayName string
}

// Headers returns the fault headers of a message that moves to the error queue: the headers by which
// ServicePulse shows and returns messages, the class of the error, and the history. Texts are cut
// at 16 KiB and are valid UTF-8.
//
// The stack begins with the type and the whole text of the error. The first frame is the place of a
// panic, or without a panic the handler or stage at.
func Headers(f recoverability.Failure, host Host, at Frame) header.Map {
	err := told(f.Err)
	typ, text := errtree.TypeName(err), errorText(f.Err)
	stack := stackOf(f.Err, typ, text, at)
	var h header.Map
	h.Reserve(23)
	h.Set(header.FailedQ, f.Queue)
	h.Set(header.TimeOfFailure, header.FormatTime(f.Now))
	h.Set(header.ExceptionType, typ)
	if wrapped := errtree.Cause(inner(err)); wrapped != nil {
		h.Set(header.InnerExceptionType, errtree.TypeName(wrapped))
	}
	h.Set(header.ExceptionMessage, text)
	h.Set(header.ExceptionStackTrace, stack.String())
	if len(stack.frames) > 0 {
		h.Set(header.ExceptionSource, stack.frames[0].source())
	}
	h.Set(header.ProcessingEndpoint, host.Endpoint)
	h.Set(header.ProcessingMachine, host.Machine)
	h.Set(header.HostID, host.HostID)
	h.Set(header.HostDisplayName, host.DisplayName)
	h.Set(header.HoldfastAttempts, strconv.Itoa(f.Attempt))
	if !f.AttemptExact {
		h.Set(header.HoldfastAttemptsExact, "false")
	}
	if f.Quarantined > 0 {
		h.Set(header.HoldfastFaultQuarantined, strconv.Itoa(f.Quarantined))
	}
	if policy := f.Resilience().Policy.Name; policy != "" {
		h.Set(header.HoldfastFaultPolicy, policy)
	}
	if f.Inline > 0 {
		h.Set(header.HoldfastFaultInline, strconv.Itoa(f.Inline))
	}
	h.Set(header.HoldfastFaultFirst, header.FormatTime(f.FirstFailure))
	h.Set(header.HoldfastFaultClass, recoverability.Class(f.Err))
	if len(f.History) > 0 {
		h.Set(header.HoldfastFaultHistory, historyText(f.History))
	}
	return h
}

// told returns the error whose type names the failure: the cause of err, and of a panic with an
// error the cause of that.
func told(err error) error {
	cause := errtree.Cause(err)
	if value := errtree.Cause(inner(cause)); value != nil && errtree.Safely(isPanic, cause) {
		return value
	}
	return cause
}

func isPanic(err error) bool {
	classed, ok := err.(interface{ FaultClass() string })
	return ok && classed.FaultClass() == "panic"
}

// inner returns the wrapped error of err, or the first joined error; nil if err wraps no error.
func inner(err error) error {
	for _, wrapped := range errtree.Unwrap(err) {
		if wrapped != nil {
			return wrapped
		}
	}
	return nil
}

// errorText returns the text of err, also when its Error method panics.
func errorText(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T: its Error method panicked", err)
		}
	}()
	return errtree.Cut(err.Error(), maxText)
}
