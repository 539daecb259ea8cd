package fault

import (
	"errors"
	"time"
)

var (
	errBroken = errors.New("broken")
	first     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// cardError stands for a user's own error, with a cause.
type cardError struct{ cause error }

// Error panics for a nil pointer.
func (e *cardError) Error() string { return "card refused: " + e.cause.Error() }
func (e *cardError) Unwrap() error { return e.cause }

// embedding wraps an error without any text.
type embedding struct{ error }

func (e embedding) Unwrap() error { return e.error }

type badUnwrap struct{}

func (badUnwrap) Error() string { return "bad Unwrap" }
func (badUnwrap) Unwrap() error { panic("Unwrap") }
