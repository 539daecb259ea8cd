package recoverability

import (
	"github.com/holdfast-go/holdfast/internal/errtree"
)

// Classes that [Class] returns for errors without a method FaultClass.
const (
	ClassTimeout       = "timeout"
	ClassUnrecoverable = "unrecoverable"
)

const maxClass = 100 // bytes

// Class returns the class of an error, by which failures are grouped: it is the same at every
// attempt, in every process and version. It is
//   - the result of the method FaultClass() string of err, or of an error that it wraps or joins, the outermost first;
//   - or [ClassTimeout] for a passed deadline and for errors whose Timeout method returns true;
//   - or [ClassUnrecoverable] for an error marked by [Unrecoverable];
//   - or the Go type of the error, without marks and without errors that only add text.
//
// Errors of the endpoint have the classes "panic", "undecodable", "unhandled" (no handler, or an
// unknown type), "timeout" and "crash-loop".
func Class(err error) string {
	var class string
	named := func(err error) bool {
		if own := errtree.Find[interface{ FaultClass() string }](err); own != nil {
			class = errtree.Cut(own.FaultClass(), maxClass)
		}
		return class != ""
	}
	timedOut := func(err error) bool {
		t := errtree.Find[interface{ Timeout() bool }](err)
		return t != nil && t.Timeout()
	}
	switch {
	case errtree.Safely(named, err):
		return class
	case errtree.Safely(timedOut, err):
		return ClassTimeout
	case IsUnrecoverable(err):
		return ClassUnrecoverable
	}
	return errtree.Cut(errtree.TypeName(errtree.Cause(err)), maxClass)
}
