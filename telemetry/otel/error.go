package otel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/endpoint"
)

// errPanicked stands for the error of a step that panicked. The endpoint makes a similar one of the panic.
var errPanicked error = &endpoint.PanicError{Value: "it did not return"}

// errorType is the Go type of the error that tells most, as in the fault headers: what only adds text, or a mark of
// package recoverability, is looked through. It is the user's error, and its methods may panic.
func errorType(err error) (name string) {
	defer func() {
		if recover() != nil {
			name = fmt.Sprintf("%T", err)
		}
	}()
	for {
		name = fmt.Sprintf("%T", err)
		inner := errors.Unwrap(err)
		if inner == nil || name != "*fmt.wrapError" && !strings.HasPrefix(name, "*recoverability.") {
			return name
		}
		err = inner
	}
}

// errorText is what err says, whatever it is.
func errorText(err error) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", err)
		}
	}()
	return err.Error()
}
