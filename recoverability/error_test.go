package recoverability

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

// cardError stands for a user's own error, with a cause.
type cardError struct{ cause error }

// Error needs more than a nil pointer, as is often the case.
func (e *cardError) Error() string { return "card refused: " + e.cause.Error() }
func (e *cardError) Unwrap() error { return e.cause }

func TestMarksOfNilAreNil(t *testing.T) {
	if err := Unrecoverable(nil); err != nil {
		t.Errorf("Unrecoverable(nil) is %v", err)
	}
	if err := RetryAfter(nil, time.Second); err != nil {
		t.Errorf("RetryAfter(nil) is %v", err)
	}
}

func TestMarksKeepTextAndChain(t *testing.T) {
	cause := &cardError{io.EOF}
	for name, err := range map[string]error{
		"Unrecoverable": Unrecoverable(cause),
		"RetryAfter":    RetryAfter(cause, time.Second),
	} {
		if err.Error() != "card refused: EOF" {
			t.Errorf("%s changed the text: %q", name, err)
		}
		var card *cardError
		if !errors.Is(err, io.EOF) || !errors.As(err, &card) {
			t.Errorf("%s hides what it wraps", name)
		}
	}
}

func TestMarksAreFoundWhereverTheyAre(t *testing.T) {
	around := map[string]func(error) error{
		"alone":                func(err error) error { return err },
		"wrapped":              func(err error) error { return fmt.Errorf("handler: %w", err) },
		"wrapped twice":        func(err error) error { return fmt.Errorf("a: %w", fmt.Errorf("b: %w", err)) },
		"in an error of one's": func(err error) error { return &cardError{err} },
		"second of a join":     func(err error) error { return errors.Join(io.EOF, err) },
		"one of several %w":    func(err error) error { return fmt.Errorf("%w and %w", io.EOF, err) },
		"in a join, wrapped":   func(err error) error { return fmt.Errorf("x: %w", errors.Join(nil, &cardError{err})) },
		"in an error embedded": func(err error) error { return embedding{err} },
	}
	for name, wrap := range around {
		t.Run(name, func(t *testing.T) {
			if !IsUnrecoverable(wrap(Unrecoverable(errBroken))) {
				t.Error("an unrecoverable error was not found")
			}
			if IsUnrecoverable(wrap(errBroken)) {
				t.Error("an unmarked error was taken for unrecoverable")
			}
			got := Config{}.Decide(with(failed(1, 0), wrap(RetryAfter(errBroken, time.Minute))))
			if got != (Delay{For: time.Minute}) {
				t.Errorf("RetryAfter was not found: %v", got)
			}
		})
	}
}

// embedding adds nothing to an error but itself.
type embedding struct{ error }

func (e embedding) Unwrap() error { return e.error }

func TestRetryAfterTakesTheOutermostOrFirst(t *testing.T) {
	minute := RetryAfter(errBroken, time.Minute)
	tests := map[string]struct {
		err  error
		want time.Duration
	}{
		"outermost": {RetryAfter(minute, time.Hour), time.Hour},
		"first":     {errors.Join(minute, RetryAfter(errBroken, time.Hour)), time.Minute},
		"negative":  {RetryAfter(errBroken, -time.Minute), 0},
	}
	for name, test := range tests {
		if got := (Config{}).Decide(with(failed(1, 0), test.err)); got != (Delay{For: test.want}) {
			t.Errorf("%s: %v, want a delay for %v", name, got, test.want)
		}
	}
}

// badUnwrap, badAs and yesAs are errors with methods that do what they should not.
type (
	badUnwrap struct{}
	badAs     struct{}
	yesAs     struct{}
)

func (badUnwrap) Error() string { return "bad Unwrap" }
func (badUnwrap) Unwrap() error { panic("Unwrap") }
func (badAs) Error() string     { return "bad As" }
func (badAs) As(any) bool       { panic("As") }
func (yesAs) Error() string     { return "As is always true" }
func (yesAs) As(any) bool       { return true }

func TestErrorsThatMisbehaveAreRetriedLikeOthers(t *testing.T) {
	for name, err := range map[string]error{
		"a nil pointer":      (*cardError)(nil),
		"a nil pointer deep": fmt.Errorf("handler: %v %w", "x", errors.Join((*cardError)(nil))),
		"Unwrap panics":      badUnwrap{},
		"As panics":          badAs{},
		"As is always true":  yesAs{},
	} {
		t.Run(name, func(t *testing.T) {
			if IsUnrecoverable(err) {
				t.Error("it was taken for unrecoverable")
			}
			if got := (Config{}).Decide(with(failed(1, 0), err)); got != (Retry{}) {
				t.Errorf("got %v, want a retry", got)
			}
			if !IsUnrecoverable(Unrecoverable(err)) {
				t.Error("a mark around it was not found")
			}
		})
	}
}
