package recoverability

import "fmt"

// Classes that [Class] gives beside those of errors with a method FaultClass.
const (
	ClassTimeout       = "timeout"
	ClassUnrecoverable = "unrecoverable"
)

const maxClass = 100 // bytes

// Class groups errors: the same kind of failure has the same class at every attempt, in every
// process and version. It is what the method FaultClass() string of err, or of an error that it
// wraps or joins, says, the outermost first; "timeout" of a deadline that has passed, and of
// errors whose Timeout method says so; "unrecoverable" of what [Unrecoverable] marked; else the
// Go type of the error, looked for behind what only adds text. Errors of the endpoint say
// "panic", "undecodable", "unhandled" (no handler, or no such type), "timeout" and
// "crash-loop".
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
	return cut(fmt.Sprintf("%T", telling(err)), maxClass)
}

// ownClass is what err says of itself, or "".
func ownClass(err error) (class string) {
	defer func() {
		if recover() != nil {
			class = ""
		}
	}()
	if own := find[interface{ FaultClass() string }](err); own != nil {
		class = cut(own.FaultClass(), maxClass)
	}
	return class
}

func timedOut(err error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	t := find[interface{ Timeout() bool }](err)
	return t != nil && t.Timeout()
}
