package recoverability

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// classed says of itself what class it is of.
type classed string

func (classed) Error() string { return "classed" }
func (c classed) FaultClass() string {
	if c == "panic!" {
		panic("no")
	}
	return string(c)
}

// circle wraps itself, and spiral always another.
type (
	circle struct{}
	spiral int
)

func (circle) Error() string   { return "circle" }
func (c circle) Unwrap() error { return c }
func (spiral) Error() string   { return "spiral" }
func (s spiral) Unwrap() error { return s + 1 }

type moved struct{}

func (moved) Error() string     { return "moved" }
func (moved) FaultType() string { return "*before.moved" }

func TestClassGroupsErrors(t *testing.T) {
	card := &cardError{errBroken}
	long := errors.New("x")
	for range 3000 {
		long = fmt.Errorf("y: %w", long)
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"its own":               {classed("crash-loop"), "crash-loop"},
		"its own, wrapped":      {fmt.Errorf("a: %w", Unrecoverable(errors.Join(card, classed("crash-loop")))), "crash-loop"},
		"its own, empty":        {classed(""), "recoverability.classed"},
		"its own, that panics":  {classed("panic!"), "recoverability.classed"},
		"its own, too long":     {classed(strings.Repeat("é", 1000)), strings.Repeat("é", 50)},
		"a deadline":            {fmt.Errorf("a: %w", context.DeadlineExceeded), "timeout"},
		"a deadline of a file":  {os.ErrDeadlineExceeded, "timeout"},
		"cancelled":             {context.Canceled, "*errors.errorString"},
		"unrecoverable":         {fmt.Errorf("a: %w", Unrecoverable(card)), "unrecoverable"},
		"unrecoverable timeout": {Unrecoverable(context.DeadlineExceeded), "timeout"},
		"a type":                {card, "*recoverability.cardError"},
		"a type, text around":   {fmt.Errorf("a: %w", RetryAfter(card, 1)), "*recoverability.cardError"},
		"joined":                {errors.Join(card, errBroken), "*errors.joinError"},
		"a type that has moved": {fmt.Errorf("a: %w", moved{}), "*before.moved"},
		"a nil pointer":         {(*cardError)(nil), "*recoverability.cardError"},
		"Unwrap panics":         {badUnwrap{}, "recoverability.badUnwrap"},
		"a circle":              {circle{}, "recoverability.circle"},
		"a circle, wrapped":     {fmt.Errorf("a: %w", circle{}), "recoverability.circle"},
		"a spiral":              {spiral(0), "recoverability.spiral"},
		"very deep":             {long, "*errors.errorString"},
		"nil":                   {nil, "<nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Class(test.err); got != test.want {
				t.Errorf("class %q, want %q", got, test.want)
			}
		})
	}
}
