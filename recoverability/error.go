package recoverability

import (
	"time"

	"github.com/holdfast-go/holdfast/internal/errtree"
)

type unrecoverableError struct{ errtree.Mark }

type retryAfterError struct {
	errtree.Mark
	after time.Duration
}

// Unrecoverable marks err so that the message is moved to the error queue without another attempt.
// If err is nil it returns nil.
func Unrecoverable(err error) error {
	if err == nil {
		return nil
	}
	return &unrecoverableError{errtree.Mark{Err: err}}
}

// IsUnrecoverable reports whether err, or an error that it wraps or joins, was marked by
// [Unrecoverable].
func IsUnrecoverable(err error) bool {
	return errtree.Find[*unrecoverableError](err) != nil
}

// RetryAfter marks err so that the next attempt follows after d instead of at once. It counts as a
// delayed retry; when none is left, the mark has no effect. Of several marks the outermost counts,
// of joined ones the first. A negative d is 0. If err is nil it returns nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{errtree.Mark{Err: err}, max(0, d)}
}
