package recoverability

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// kinds are errors whose own methods say what they are.
type kinds struct{ is error }

func (kinds) Error() string          { return "kinds" }
func (k kinds) Is(target error) bool { return target == k.is }
func (k kinds) As(target any) bool {
	if t, ok := target.(*embedding); ok {
		*t = embedding{k.is}
		return true
	}
	return false
}

// uncomparable panics when it is compared with ==, and says that it is io.EOF.
type uncomparable []string

func (uncomparable) Error() string { return "uncomparable" }

// endless wraps itself.
type endless struct{}

func (endless) Error() string { return "endless" }
func (endless) Unwrap() error { return endless{} }

// fan joins itself many times over.
type fan []error

func (fan) Error() string     { return "fan" }
func (f fan) Unwrap() []error { return f }

func fanOf(n int) error {
	f := make(fan, n)
	for i := range f {
		f[i] = f
	}
	return f
}

func TestMatchersFindWhatErrorsIsAndAsFind(t *testing.T) {
	card := &cardError{io.EOF}
	isEOF, isCard := Is(io.EOF), As[*cardError]()
	tests := map[string]error{
		"nil":                      nil,
		"itself":                   io.EOF,
		"another":                  errBroken,
		"wrapped":                  fmt.Errorf("a: %w", fmt.Errorf("b: %w", io.EOF)),
		"in a join":                errors.Join(errBroken, io.EOF),
		"deep in a join":           errors.Join(errBroken, fmt.Errorf("a: %w, %w", errBroken, errors.Join(io.EOF))),
		"marked":                   Unrecoverable(RetryAfter(card, time.Second)),
		"a type":                   card,
		"a type in a join":         errors.Join(errBroken, &cardError{errBroken}),
		"an error that says so":    fmt.Errorf("a: %w", kinds{io.EOF}),
		"an error that denies it":  kinds{errBroken},
		"not comparable":           uncomparable{"a"},
		"not comparable, wrapping": errors.Join(uncomparable{"a"}, io.EOF),
		"a target in a nil slot":   several{nil, io.EOF},
	}
	for name, err := range tests {
		if got, want := isEOF(err), errors.Is(err, io.EOF); got != want {
			t.Errorf("%s: Is is %v, errors.Is %v", name, got, want)
		}
		var as *cardError
		if got, want := isCard(err), errors.As(err, &as); got != want {
			t.Errorf("%s: As is %v, errors.As %v", name, got, want)
		}
	}
	if Is(uncomparable{"a"})(uncomparable{"a"}) {
		t.Error("two errors that cannot be compared are the same")
	}
	if !As[embedding]()(errors.Join(errBroken, kinds{io.EOF})) || As[embedding]()(card) {
		t.Error("As does not ask the error's own method")
	}
	if !As[interface{ StackTrace() string }]()(fmt.Errorf("a: %w", panicked{})) {
		t.Error("As does not find an interface")
	}
}

// A predicate is called for each error of a chain, from the outside in.
func TestAPredicateSeesErrorsFromTheOutsideIn(t *testing.T) {
	var asked []string
	When(func(err error) bool {
		asked = append(asked, err.Error())
		return err == io.EOF //nolint:errorlint // one error at a time
	})(fmt.Errorf("a: %w", errors.Join(fmt.Errorf("b: %w", errBroken), io.EOF, io.ErrNoProgress)))
	want := "a: b: broken\nEOF\nmultiple Read calls return no data or error|" +
		"b: broken\nEOF\nmultiple Read calls return no data or error|b: broken|broken|EOF"
	if got := strings.Join(asked, "|"); got != want {
		t.Errorf("asked about\n%q, want\n%q", got, want)
	}
}

func TestErrorsThatMisbehaveHideNoOthers(t *testing.T) {
	for name, bad := range map[string]error{
		"Unwrap panics": badUnwrap{}, "As panics": badAs{}, "Error panics": badError{},
		"a nil pointer": (*cardError)(nil), "it cannot be compared": uncomparable{"a"},
	} {
		if !Is(io.EOF)(errors.Join(bad, io.EOF)) {
			t.Errorf("%s: the error beside it was not found", name)
		}
		if Is(io.EOF)(bad) || As[*retryAfterError]()(bad) || When(func(err error) bool { return err.Error() == "x" })(bad) {
			t.Errorf("%s: it was taken for another", name)
		}
		if !IsUnrecoverable(errors.Join(bad, Unrecoverable(io.EOF))) {
			t.Errorf("%s: the mark beside it was not found", name)
		}
	}
	if When(func(error) bool { panic("no") })(io.EOF) {
		t.Error("a test that panics said yes")
	}
}

func TestErrorsWithoutEndAreLookedAtForAWhile(t *testing.T) {
	for _, err := range []error{endless{}, fanOf(2), fanOf(100_000)} {
		asked := 0
		if When(func(error) bool { asked++; return false })(err) || IsUnrecoverable(err) {
			t.Errorf("%v was taken for something", err)
		}
		if asked != 1000 {
			t.Errorf("%v: asked %d times, want 1,000", err, asked)
		}
	}
}

func TestMatchersOfNothingAreRefused(t *testing.T) {
	c := Config{
		Unrecoverable: []Matcher{Is(io.EOF), Is(nil), When(nil)},
		Rules:         []Rule{{}, {Errors: []Matcher{nil}}},
	}
	want := "recoverability: matcher 2 of Unrecoverable is nil: Is or When was called with nil\n" +
		"recoverability: matcher 3 of Unrecoverable is nil: Is or When was called with nil\n" +
		"recoverability: rule 2: matcher 1 of Errors is nil: Is or When was called with nil"
	if err := c.Validate(); err == nil || err.Error() != want {
		t.Errorf("got\n%v, want\n%s", err, want)
	}
}

func TestConfiguredErrorsAreUnrecoverable(t *testing.T) {
	c := Config{Unrecoverable: []Matcher{
		Is(io.EOF), As[*cardError](),
		func(err error) bool { return err.Error() == "exactly this" }, // asked about the whole only
		func(error) bool { panic("no") },
	}}
	toError, retry := MoveToError{Queue: "error"}, Retry{}
	for name, test := range map[string]struct {
		err  error
		want Action
	}{
		"by value":             {fmt.Errorf("a: %w", io.EOF), toError},
		"by type":              {errors.Join(errBroken, &cardError{errBroken}), toError},
		"by a function":        {errors.New("exactly this"), toError},
		"by a function, inner": {fmt.Errorf("a: %w", errors.New("exactly this")), retry},
		"marked":               {Unrecoverable(errBroken), toError},
		"another":              {errBroken, retry},
		"wins over advice":     {RetryAfter(io.EOF, time.Minute), toError},
	} {
		f := with(failed(1, 0), test.err)
		if got := c.Decide(f); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
		f.Config = c
		if got := f.Unrecoverable(); got != (test.want == toError) {
			t.Errorf("%s: Unrecoverable is %v", name, got)
		}
	}
}

type panicked struct{}

func (panicked) Error() string      { return "panicked" }
func (panicked) StackTrace() string { return "" }

type several []error

func (several) Error() string     { return "several" }
func (s several) Unwrap() []error { return s }

// badError panics with a value that cannot be printed.
type badError struct{}

func (e badError) Error() string { panic(e) }
