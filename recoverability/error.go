package recoverability

import "time"

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
	return find[*unrecoverableError](err) != nil
}

// RetryAfter marks err with the handler's own advice: try again after d rather
// than at once. It counts as a delayed retry; where none is left, the advice is not
// taken. Of several marks the outermost counts, of joined ones the first. A negative d
// is 0. Nil stays nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(0, d)}
}

func retryAfter(err error) (time.Duration, bool) {
	if r := find[*retryAfterError](err); r != nil {
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
