// Package panics calls functions of the user's. A panic, and the end of a goroutine, is an error.
package panics

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/recoverability"
)

// ErrGoexit is the error of a function that ended its goroutine.
var ErrGoexit = errors.New("a handler or behavior ended its goroutine (runtime.Goexit)")

// Catch turns a panic of the function that defers Catch into the function's error.
func Catch(err *error) {
	if v := recover(); v != nil {
		*err = &recoverability.PanicError{Value: v, Stack: debug.Stack()}
	}
}

// Apart calls f in a goroutine of its own, so that an f that ends its goroutine ends nothing else.
// A panic and such an end are the error.
func Apart(f func() error) error {
	err := callback.Run(context.Background(), func() (err error) {
		defer Catch(&err)
		return f()
	})
	if errors.Is(err, callback.ErrGoexit) {
		return ErrGoexit
	}
	return err
}

// Text returns the text of a value that a function panicked with.
func Text(v any) string { return (&recoverability.PanicError{Value: v}).Text() }
