package recoverability

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/errtree"
)

// Classes that [Class] returns for errors without a method FaultClass.
const (
	ClassTimeout       = "timeout"
	ClassUnrecoverable = "unrecoverable"
)

const maxClass = 100 // bytes

// Class returns the class of an error, by which failures are grouped: it is the same at every attempt, in every process
// and version. It is
//   - the result of the method FaultClass() string of err, or of an error that it wraps or joins, the outermost first;
//   - or [ClassTimeout] for a passed deadline and for errors whose Timeout method returns true;
//   - or [ClassUnrecoverable] for an error marked by [Unrecoverable];
//   - or the Go type of the error, without marks and without errors that only add text.
//
// Errors of the endpoint have the classes "panic", "undecodable", "unhandled" (no handler, or an unknown type),
// "timeout" and "crash-loop".
func Class(err error) string {
	if class := ownClass(err); class != "" {
		return class
	}
	switch {
	case timedOut(err):
		return ClassTimeout
	case IsUnrecoverable(err):
		return ClassUnrecoverable
	}
	return errtree.Cut(fmt.Sprintf("%T", errtree.Cause(err)), maxClass)
}

// ownClass returns the result of err's method FaultClass, or "".
func ownClass(err error) (class string) {
	defer func() {
		if recover() != nil {
			class = ""
		}
	}()
	if own := errtree.Find[interface{ FaultClass() string }](err); own != nil {
		class = errtree.Cut(own.FaultClass(), maxClass)
	}
	return class
}

func timedOut(err error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	t := errtree.Find[interface{ Timeout() bool }](err)
	return t != nil && t.Timeout()
}
