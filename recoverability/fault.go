package recoverability

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
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
// names that ServicePulse shows and returns messages by.
func FaultHeaders(f Failure, host Host) header.Map {
	var h header.Map
	h.Reserve(16)
	h.Set(header.FailedQ, f.Queue)
	h.Set(header.TimeOfFailure, header.FormatTime(f.Now))
	h.Set(header.ExceptionType, errorType(f.Err))
	if inner := errors.Unwrap(unmarked(f.Err)); inner != nil {
		h.Set(header.InnerExceptionType, errorType(inner))
	}
	h.Set(header.ExceptionMessage, cut(f.Err.Error()))
	h.Set(header.ExceptionStackTrace, cut(stackText(f.Err)))
	h.Set(header.ProcessingEndpoint, host.Endpoint)
	h.Set(header.ProcessingMachine, host.Machine)
	h.Set(header.HostID, host.HostID)
	h.Set(header.HostDisplayName, host.DisplayName)
	h.Set(header.HoldfastAttempts, strconv.Itoa(f.Attempt))
	if !f.AttemptExact {
		h.Set(header.HoldfastAttemptsExact, "false")
	}
	h.Set(header.HoldfastFaultFirst, header.FormatTime(f.FirstFailure))
	return h
}

// errorType is the Go type of the error that says what happened: marks of this package
// are looked through.
func errorType(err error) string { return reflect.TypeOf(unmarked(err)).String() }

func unmarked(err error) error {
	for {
		switch e := err.(type) { //nolint:errorlint // only the outermost marks are taken off
		case *unrecoverableError:
			err = e.err
		case *retryAfterError:
			err = e.err
		default:
			return err
		}
	}
}

// stackText is the stack of a panic where there is one, else the error in full.
func stackText(err error) string {
	var traced interface{ StackTrace() string }
	if errors.As(err, &traced) {
		return traced.StackTrace()
	}
	return fmt.Sprintf("%s: %v", errorType(err), err)
}

func cut(s string) string {
	if len(s) <= maxFaultText {
		return s
	}
	end := maxFaultText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// DelayHeaders are the headers of the copy that a delayed retry sends: those of the
// failed message, with the retry counted.
func DelayHeaders(f Failure) header.Map {
	h := f.Headers.Clone()
	h.Set(header.Retries, strconv.Itoa(f.Delayed+1))
	h.Set(header.RetriesTimestamp, header.FormatTime(f.Now))
	h.Set(header.HoldfastFirstFailure, header.FormatTime(f.FirstFailure))
	return h
}

// ErrorHeaders are the headers of the copy that goes to the error queue: those of
// the failed message without what counts retries, so that a message returned from
// there starts afresh, and with fault.
func ErrorHeaders(received, fault header.Map) header.Map {
	var h header.Map
	h.Reserve(received.Len() + fault.Len())
	for name, value := range received.All() {
		switch name {
		case header.Retries, header.RetriesTimestamp, header.FirstLevelRetries, header.HoldfastFirstFailure:
		default:
			h.Set(name, value)
		}
	}
	for name, value := range fault.All() {
		h.Set(name, value)
	}
	return h
}

// maxDelayed bounds what a Retries header is believed to say.
const maxDelayed = 1 << 20

// DelayedRetries is the number of delayed retries that headers tell of: 0 where they say
// nothing that makes sense.
func DelayedRetries(h header.Map) int {
	n, err := strconv.Atoi(h.Get(header.Retries))
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
