// Package errtree looks into errors of any origin: also into those that wrap themselves, and those
// whose methods panic.
package errtree

import (
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Mark wraps an error without changing its text. [Cause] looks through it.
type Mark struct{ Err error }

func (m Mark) Error() string { return m.Err.Error() }

// Unwrap returns the marked error.
func (m Mark) Unwrap() error { return m.Err }

func (m Mark) marked() error { return m.Err }

// wrapType is the type of the errors that fmt.Errorf makes of one other.
var wrapType = reflect.TypeOf(fmt.Errorf("%w", errors.ErrUnsupported))

// Cause returns the first error in err that is not a [Mark] and does more than add text.
func Cause(err error) error {
	for {
		if m, ok := err.(interface{ marked() error }); ok {
			err = m.marked()
		} else if reflect.TypeOf(err) == wrapType {
			err = errors.Unwrap(err)
		} else {
			return err
		}
	}
}

// TypeName returns the name of the type of err in fault headers and telemetry. ServiceControl groups
// failed messages by this name. So a type that has moved to another package keeps the name, by a
// method FaultType.
func TypeName(err error) (name string) {
	defer func() {
		if recover() != nil {
			name = fmt.Sprintf("%T", err)
		}
	}()
	if t, ok := err.(interface{ FaultType() string }); ok {
		return t.FaultType()
	}
	return fmt.Sprintf("%T", err)
}

// Any reports whether test returns true for err or for an error in it. A test that panics returns
// false.
func Any(err error, test func(error) bool) bool {
	for each := range all(err) {
		if Safely(test, each) {
			return true
		}
	}
	return false
}

// Safely returns the result of test, and false if it panics.
func Safely(test func(error) bool, err error) (result bool) {
	defer func() {
		if recover() != nil {
			result = false
		}
	}()
	return test(err)
}

// maxErrors bounds how many errors are looked at: some wrap themselves.
const maxErrors = 1000

// all yields err and the errors in it, in the order of errors.Is.
func all(err error) iter.Seq[error] {
	return func(yield func(error) bool) {
		todo := []error{err}
		for seen := 0; seen < maxErrors && len(todo) > 0; seen++ {
			last := len(todo) - 1
			each := todo[last]
			todo = todo[:last]
			if each == nil {
				continue
			}
			if !yield(each) {
				return
			}
			for _, next := range slices.Backward(Unwrap(each)) {
				todo = append(todo, next)
			}
		}
	}
}

// Unwrap returns the errors that err wraps or joins; none if its method panics.
func Unwrap(err error) (wrapped []error) {
	defer func() { _ = recover() }()
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		wrapped = many.Unwrap()
		return wrapped[:min(len(wrapped), maxErrors)]
	}
	if one := errors.Unwrap(err); one != nil {
		return []error{one}
	}
	return nil
}

// As returns err itself as an E, by its type or its method As.
func As[E any](err error) (found E, ok bool) {
	if e, ok := err.(E); ok {
		return e, true
	}
	if as, ok := err.(interface{ As(target any) bool }); ok && as.As(&found) {
		return found, true
	}
	return found, false
}

// Find returns the first E in err that is not the zero value, or else the last E.
func Find[E comparable](err error) (found E) {
	Any(err, func(err error) bool {
		e, ok := As[E](err)
		if ok {
			found = e
		}
		return found != *new(E)
	})
	return found
}

// Cut returns the beginning of s, of at most most bytes, up to a character boundary. Bytes that are
// not UTF-8 become question marks, and control characters other than tab, line feed and carriage
// return become escapes such as \x00: some brokers and databases refuse both.
func Cut(s string, most int) string {
	s = strings.ToValidUTF8(prefix(s, most), "?")
	if strings.IndexFunc(s, isControl) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isControl(r) {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return prefix(b.String(), most)
}

func isControl(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' }

// prefix returns the beginning of s, of at most most bytes, up to a character boundary.
func prefix(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
