package resilience

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrAttemptTimeout is the cause of the context of an attempt whose time is over, and is wrapped by
// the error of that attempt.
var ErrAttemptTimeout = errors.New("the attempt has timed out")

// TimeoutError is the error of an attempt that failed after its time was over. It wraps
// [ErrAttemptTimeout] and the error of the function.
type TimeoutError struct {
	After time.Duration // the time limit
	Err   error         // of the function; not nil
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%v after %v: %v", ErrAttemptTimeout, e.After, e.Err)
}

// Unwrap returns ErrAttemptTimeout and Err.
func (e *TimeoutError) Unwrap() []error { return []error{ErrAttemptTimeout, e.Err} }

// NonRetryable marks an error after which there is no retry. It returns nil for nil. The text is
// that of err.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &nonRetryableError{err}
}

type nonRetryableError struct{ err error }

func (e *nonRetryableError) Error() string   { return e.err.Error() }
func (e *nonRetryableError) Unwrap() error   { return e.err }
func (e *nonRetryableError) Retryable() bool { return false }

// IsNonRetryable reports whether err, or an error that it wraps or joins, is marked by
// [NonRetryable] or has a method Retryable() bool that returns false.
func IsNonRetryable(err error) bool {
	return anyIn(err, func(err error) bool {
		r, ok := err.(interface{ Retryable() bool })
		return ok && !r.Retryable()
	})
}

// terminal reports whether there is no retry after err: it is marked, or the function was
// cancelled.
func terminal(err error) bool {
	return IsNonRetryable(err) || anyIn(err, func(err error) bool { return is(err, context.Canceled) })
}

// maxLayers bounds the errors of a tree that are looked at: an error may wrap itself.
const maxLayers = 1000

// anyIn reports whether test returns true for err or an error that it wraps or joins, from the
// outside in. A test that panics returns false for that error.
func anyIn(err error, test func(error) bool) bool {
	next := []error{err}
	for n := 0; n < maxLayers && len(next) > 0; n++ {
		err, next = next[0], next[1:]
		if err == nil {
			continue
		}
		if safely(func() bool { return test(err) }) {
			return true
		}
		safely(func() bool {
			switch w := err.(type) { //nolint:errorlint // a layer
			case interface{ Unwrap() error }:
				next = append(next, w.Unwrap())
			case interface{ Unwrap() []error }:
				inner := w.Unwrap()
				next = append(next, inner[:min(len(inner), maxLayers)]...)
			}
			return false
		})
	}
	return false
}

// is reports whether err itself, not one that it wraps, is target or has a method Is that says so,
// as the errors of package net do. Values of a type that cannot be compared are not target.
func is(err, target error) bool {
	return safely(func() bool { return err == target }) || safely(func() bool { //nolint:errorlint // a layer
		x, ok := err.(interface{ Is(error) bool })
		return ok && x.Is(target)
	})
}

func safely(f func() bool) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return f()
}
