package recoverability

import (
	"reflect"
	"slices"

	"github.com/holdfast-go/holdfast/internal/errtree"
)

// Matcher reports whether an error matches. A matcher of [Is], [As] or [When] also looks at the
// errors that the error wraps or joins; any other function is called with the error itself only. It
// must be safe for concurrent use.
type Matcher func(error) bool

// Is returns a Matcher of the errors for which [errors.Is] finds target. If target is nil the
// Matcher is nil, which [Config.Validate] refuses.
func Is(target error) Matcher {
	if target == nil {
		return nil
	}
	comparable := reflect.TypeOf(target).Comparable()
	return When(func(err error) bool { // errors.Is, layer by layer
		is, ok := err.(interface{ Is(target error) bool })
		return comparable && err == target || ok && is.Is(target) //nolint:errorlint // a layer
	})
}

// As returns a Matcher of the errors in which [errors.As] finds an E. E may be an interface.
func As[E any]() Matcher {
	return When(func(err error) bool {
		_, ok := errtree.As[E](err)
		return ok
	})
}

// When returns a Matcher of the errors for which test returns true: for the error, or for one that
// it wraps or joins, from the outside in. An error or a test that panics does not match, and the
// other errors are still looked at, up to 1,000. If test is nil the Matcher is nil, which
// [Config.Validate] refuses.
func When(test func(error) bool) Matcher {
	if test == nil {
		return nil
	}
	return func(err error) bool { return errtree.Any(err, test) }
}

// anyOf reports whether one of the matchers matches err.
func anyOf(matchers []Matcher, err error) bool {
	return slices.ContainsFunc(matchers, func(m Matcher) bool { return errtree.Safely(m, err) })
}
