// Package fault does the arithmetic of failed messages: the headers of their copies, the counts in these headers and
// the history of failures. It reads no clock and does no I/O.
package fault

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

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

// Headers returns the fault headers of a message that is moved to the error queue: those by which ServicePulse shows
// and returns messages, the class of the error, and the history. Texts are cut at 16 KiB and are valid UTF-8. A stack
// that contains the text of the error contains it whole, after the type.
func Headers(f recoverability.Failure, host Host) header.Map {
	err := errtree.Cause(f.Err)
	text := errorText(f.Err)
	var h header.Map
	h.Reserve(20)
	h.Set(header.FailedQ, f.Queue)
	h.Set(header.TimeOfFailure, header.FormatTime(f.Now))
	h.Set(header.ExceptionType, fmt.Sprintf("%T", err))
	if wrapped := errtree.Cause(inner(err)); wrapped != nil {
		h.Set(header.InnerExceptionType, fmt.Sprintf("%T", wrapped))
	}
	h.Set(header.ExceptionMessage, text)
	h.Set(header.ExceptionStackTrace, stackText(f.Err, text))
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
	h.Set(header.HoldfastFaultFirst, header.FormatTime(f.FirstFailure))
	h.Set(header.HoldfastFaultClass, recoverability.Class(f.Err))
	if len(f.History) > 0 {
		h.Set(header.HoldfastFaultHistory, historyText(f.History))
	}
	return h
}

// inner returns the error that err wraps, or the first that it joins; nil if there is none.
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

// stackText returns the stack of a panic, or else the type and the text of the error.
func stackText(err error, text string) (stack string) {
	stack = errtree.Cut(fmt.Sprintf("%T", errtree.Cause(err)), maxTrimmed) + ": " + text
	defer func() { _ = recover() }()
	if traced := errtree.Find[interface{ StackTrace() string }](err); traced != nil {
		trace := strings.ToValidUTF8(traced.StackTrace(), "?")
		if len(text) > maxText-utf8.UTFMax { // it was cut
			trace, _, _ = strings.Cut(trace, text)
		}
		return cutBeside(trace, text, maxText)
	}
	return stack
}

// cutBeside returns the beginning of stack, of at most most bytes, and cuts no occurrence of text in two.
// ServiceControl removes the text from the stack before it looks for a frame, and a part of the text that is left costs
// it seconds.
func cutBeside(stack, text string, most int) string {
	if len(stack) <= most {
		return stack
	}
	from := max(0, most-len(text)+1)
	if i := strings.Index(stack[from:min(len(stack), most+len(text)-1)], text); text != "" && i >= 0 && from+i < most {
		most = from + i
	}
	return errtree.Cut(stack, most)
}
