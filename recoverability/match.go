package recoverability

import (
	"errors"
	"iter"
	"reflect"
	"slices"
)

// Matcher tells whether it means an error. [Is], [As] and [When] make one that looks at
// what the error wraps and joins too; any other function is asked about the error as
// it is. It is called by many goroutines at once.
type Matcher func(error) bool

// Is means target, wherever in an error it is: what [errors.Is] finds. Of nil it is nil, which
// [Config.Validate] refuses.
func Is(target error) Matcher {
	if target == nil {
		return nil
	}
	return When(func(err error) bool { return same(err, target) })
}

// As means the errors of type E, wherever in an error one is: what [errors.As] finds. E may be
// an interface.
func As[E any]() Matcher {
	return When(func(err error) bool {
		_, ok := assert[E](err)
		return ok
	})
}

// When means the errors that test is true of. It is asked about the error and about each that
// is wrapped or joined in it, from the outside in, until it says yes.
//
// An error whose methods panic, as those of a nil pointer do, and a test that panics mean
// nothing; the others are looked at all the same, up to 1,000. Of nil it is nil.
func When(test func(error) bool) Matcher {
	if test == nil {
		return nil
	}
	return func(err error) bool {
		for each := range within(err) {
			if safely(test, each) {
				return true
			}
		}
		return false
	}
}

// anyOf tells whether one of the matchers means err.
func anyOf(matchers []Matcher, err error) bool {
	return slices.ContainsFunc(matchers, func(m Matcher) bool { return safely(m, err) })
}

// safely is what test says of err; no, where it panics.
func safely(test func(error) bool, err error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	return test(err)
}

// maxErrors bounds how many errors are looked at: some wrap themselves.
const maxErrors = 1000

// within goes through err and what it wraps and joins, in the order of errors.Is.
func within(err error) iter.Seq[error] {
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
			for _, next := range slices.Backward(unwrap(each)) {
				todo = append(todo, next)
			}
		}
	}
}

// unwrap is what err wraps, none where it panics, and of many joined the first.
func unwrap(err error) (wrapped []error) {
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

// same tells whether err alone is target, as errors.Is does.
func same(err, target error) bool {
	if reflect.TypeOf(target).Comparable() && err == target { //nolint:errorlint // layer by layer
		return true
	}
	is, ok := err.(interface{ Is(target error) bool })
	return ok && is.Is(target)
}

// assert is err alone as an E, as errors.As does.
func assert[E any](err error) (found E, ok bool) {
	if e, ok := err.(E); ok {
		return e, true
	}
	if as, ok := err.(interface{ As(target any) bool }); ok && as.As(&found) {
		return found, true
	}
	return found, false
}

// find is the first E in err that is more than a zero value, or else that.
func find[E comparable](err error) (found E) {
	When(func(err error) bool {
		e, ok := assert[E](err)
		if ok {
			found = e
		}
		return found != *new(E)
	})(err)
	return found
}
