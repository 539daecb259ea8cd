package otel

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/recoverability"
)

// errPanicked stands for the error of a step that panicked. The endpoint makes a similar one of the
// panic.
var errPanicked error = &recoverability.PanicError{Value: "it did not return"}

// errorType is the Go type of the error that tells most, as in the fault headers: what only adds
// text, or a mark of package recoverability, is looked through. nil has none.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	return errtree.TypeName(errtree.Cause(err))
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
