package recoverability

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/header"
)

// maxFaultText bounds the error text and the stack in a fault header, in bytes.
const maxFaultText = 16 << 10

// Host is where a message failed.
type Host struct {
	Endpoint, Machine, HostID, DisplayName string
}

// FaultHeaders are what a message gets on its way to the error queue, under the
// names that ServicePulse shows and returns messages by, the class of the error, and
// what is known of earlier failures. Texts are cut at 16 KiB and are UTF-8, whatever
// the error says. A stack that has the text of the error has it whole, behind the type.
func FaultHeaders(f Failure, host Host) header.Map {
	err := telling(f.Err)
	text := errorText(f.Err)
	var h header.Map
	h.Reserve(20)
	h.Set(header.FailedQ, f.Queue)
	h.Set(header.TimeOfFailure, header.FormatTime(f.Now))
	h.Set(header.ExceptionType, fmt.Sprintf("%T", err))
	if wrapped := telling(inner(err)); wrapped != nil {
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
	h.Set(header.HoldfastFaultClass, Class(f.Err))
	if len(f.History) > 0 {
		h.Set(header.HoldfastFaultHistory, historyText(f.History))
	}
	return h
}

// wrapType is of the errors that fmt.Errorf makes of one other.
var wrapType = reflect.TypeOf(fmt.Errorf("%w", errors.ErrUnsupported))

// telling is the error in err whose type says what happened: the marks of this package
// and what only adds text are looked through.
func telling(err error) error {
	for {
		switch e := err.(type) { //nolint:errorlint // layer by layer, from the outside
		case *unrecoverableError:
			err = e.err
		case *retryAfterError:
			err = e.err
		default:
			if reflect.TypeOf(err) != wrapType {
				return err
			}
			err = errors.Unwrap(err)
		}
	}
}

// inner is what err wraps, the first of several; nil where it wraps nothing or panics.
func inner(err error) (wrapped error) {
	defer func() { _ = recover() }()
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return errors.Unwrap(err)
	}
	for _, wrapped = range many.Unwrap() {
		if wrapped != nil {
			break
		}
	}
	return wrapped
}

// errorText is what err says, or that it cannot say anything.
func errorText(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T: its Error method panicked", err)
		}
	}()
	return cut(err.Error(), maxFaultText)
}

// stackText is the stack of a panic where there is one, else type and text of the error.
func stackText(err error, text string) (stack string) {
	stack = cut(fmt.Sprintf("%T", telling(err)), maxTrimmed) + ": " + text
	defer func() { _ = recover() }()
	if traced := find[interface{ StackTrace() string }](err); traced != nil {
		trace := strings.ToValidUTF8(traced.StackTrace(), "?")
		if len(text) > maxFaultText-utf8.UTFMax { // it was cut
			trace, _, _ = strings.Cut(trace, text)
		}
		return cutBeside(trace, text, maxFaultText)
	}
	return stack
}

// cutBeside is the beginning of stack, of at most most bytes, that has text whole wherever it has it. ServiceControl
// takes the text out of the stack before it looks for a frame, and a part of one that is left costs it seconds.
func cutBeside(stack, text string, most int) string {
	if len(stack) <= most {
		return stack
	}
	from := max(0, most-len(text)+1)
	if i := strings.Index(stack[from:min(len(stack), most+len(text)-1)], text); text != "" && i >= 0 && from+i < most {
		most = from + i
	}
	return cut(stack, most)
}

// cut is the beginning of s, of at most most bytes, up to between two characters.
// Bytes that are not UTF-8, which some brokers refuse, become question marks.
func cut(s string, most int) string {
	if len(s) > most {
		end := most
		for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	return strings.ToValidUTF8(s, "?")
}

// DelayHeaders are the headers of the copy that a delayed retry sends: those of the
// failed message, with the retry counted and the failure added to the history, in the words of
// fault.
func DelayHeaders(f Failure, fault header.Map) header.Map {
	h := f.Headers.Clone()
	h.Set(header.Retries, strconv.Itoa(min(f.Delayed+1, maxDelayed)))
	h.Set(header.RetriesTimestamp, header.FormatTime(f.Now))
	h.Set(header.HoldfastFirstFailure, header.FormatTime(f.FirstFailure))
	h.Set(header.HoldfastHistory, historyText(append(slices.Clip(f.History), f.Past(fault))))
	h.Del(header.HoldfastUsedRetries)
	h.Del(header.HoldfastThrottledFailures)
	h.Del(header.HoldfastThrottledSince)
	return h
}

// ErrorHeaders are the headers of the copy that goes to the error queue: those of
// the failed message without what counts retries, so that a message returned from
// there starts afresh; without what is left of an earlier fault; and with fault.
func ErrorHeaders(received, fault header.Map) header.Map {
	var h header.Map
	h.Reserve(received.Len() + fault.Len())
	for name, value := range received.All() {
		if !countsRetries(name) && !tellsOfFault(name) {
			h.Set(name, value)
		}
	}
	for name, value := range fault.All() {
		h.Set(name, value)
	}
	return h
}

func countsRetries(name string) bool {
	switch name {
	case header.Retries, header.RetriesTimestamp, header.FirstLevelRetries,
		header.HoldfastFirstFailure, header.HoldfastHistory, header.HoldfastUsedRetries,
		header.HoldfastThrottledFailures, header.HoldfastThrottledSince:
		return true
	}
	return false
}

func tellsOfFault(name string) bool {
	return strings.HasPrefix(name, "NServiceBus.ExceptionInfo.") || strings.HasPrefix(name, "Holdfast.Fault.")
}

// maxDelayed bounds what a Retries header is believed to say.
const maxDelayed = 1 << 20

// DelayedRetries is the number of delayed retries that headers tell of: 0 where they say
// nothing that makes sense.
func DelayedRetries(h header.Map) int { return count(h.Get(header.Retries)) }

func count(value string) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxDelayed {
		return 0
	}
	return n
}

// FirstFailure is when the message first failed according to its headers, or now. A time
// in the future, of a clock that is ahead, is now.
func FirstFailure(h header.Map, now time.Time) time.Time {
	t, err := header.ParseTime(h.Get(header.HoldfastFirstFailure))
	if err != nil || t.After(now) {
		return now
	}
	return t
}
