package recoverability

import (
	"errors"
	"time"
)

// Unrecoverable marks err so that the message goes to the error queue without
// another attempt. Nil stays nil.
func Unrecoverable(err error) error {
	if err == nil {
		return nil
	}
	return &unrecoverableError{err}
}

// IsUnrecoverable reports whether err, or an error that it wraps or joins, was marked by
// [Unrecoverable].
func IsUnrecoverable(err error) bool {
	var u *unrecoverableError
	return errors.As(err, &u)
}

// RetryAfter marks err with the handler's own advice: try again after d rather
// than at once. It counts as a delayed retry. Nil stays nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(0, d)}
}

func retryAfter(err error) (time.Duration, bool) {
	var r *retryAfterError
	if errors.As(err, &r) {
		return r.after, true
	}
	return 0, false
}

type unrecoverableError struct{ err error }

func (e *unrecoverableError) Error() string { return e.err.Error() }
func (e *unrecoverableError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }
