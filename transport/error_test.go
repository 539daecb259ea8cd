package transport_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
)

func TestTooLargeErrorTellsSizeAndLimit(t *testing.T) {
	var err error = &transport.TooLargeError{What: "body", Size: 300, Max: 256}
	if got, want := err.Error(), "body of 300 bytes is over the limit of 256"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	wrapped := fmt.Errorf("rabbitmq: publish: %w", err)
	if !errors.Is(wrapped, transport.ErrTooLarge) {
		t.Error("it is not ErrTooLarge")
	}
	if errors.Is(wrapped, transport.ErrNoQueue) {
		t.Error("it is another sentinel too")
	}
	var large *transport.TooLargeError
	if !errors.As(wrapped, &large) || large.Size != 300 {
		t.Errorf("got %+v out of the chain", large)
	}
}

func TestSentinelsAreDistinct(t *testing.T) {
	all := []error{
		transport.ErrNoQueue, transport.ErrLeaseLost, transport.ErrOutcomeUnknown,
		transport.ErrTooLarge, transport.ErrNotFound, transport.ErrClosed,
	}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(a, b) != (i == j) {
				t.Errorf("errors.Is(%q, %q) is %v", a, b, i != j)
			}
		}
	}
}

func TestDispatchErrorShowsTheFirstThree(t *testing.T) {
	op := func(i int) transport.OpError {
		return transport.OpError{Index: i, Err: fmt.Errorf("send to %q: %w", fmt.Sprint("q", i), transport.ErrNoQueue)}
	}
	tests := []struct {
		ops  []transport.OpError
		want string
	}{
		{[]transport.OpError{op(0)}, `dispatch: 1 of 9 operations failed; operation 0: send to "q0": no such queue`},
		{
			[]transport.OpError{op(1), op(3), op(5)},
			`dispatch: 3 of 9 operations failed; operation 1: send to "q1": no such queue; ` +
				`operation 3: send to "q3": no such queue; operation 5: send to "q5": no such queue`,
		},
		{
			[]transport.OpError{op(1), op(3), op(5), op(7)},
			`dispatch: 4 of 9 operations failed; operation 1: send to "q1": no such queue; ` +
				`operation 3: send to "q3": no such queue; operation 5: send to "q5": no such queue; …`,
		},
	}
	for _, test := range tests {
		err := &transport.DispatchError{Ops: test.ops, Total: 9}
		if diff := cmp.Diff(test.want, err.Error()); diff != "" {
			t.Error(diff)
		}
	}
}

func TestDispatchErrorIsEachOfItsErrors(t *testing.T) {
	err := fmt.Errorf("endpoint: %w", &transport.DispatchError{Total: 4, Ops: []transport.OpError{
		{Index: 0, Err: transport.ErrNoQueue},
		{Index: 1}, // a driver's mistake is no panic
		{Index: 3, Err: &transport.TooLargeError{What: "message", Size: 2, Max: 1}},
	}})
	for _, target := range []error{transport.ErrNoQueue, transport.ErrTooLarge} {
		if !errors.Is(err, target) {
			t.Errorf("it is not %q", target)
		}
	}
	if errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Error("it is an error that no operation has")
	}
	var large *transport.TooLargeError
	if !errors.As(err, &large) || large.Size != 2 {
		t.Errorf("got %+v out of the operations", large)
	}
	var failed *transport.DispatchError
	if !errors.As(err, &failed) || len(failed.Unwrap()) != 3 {
		t.Errorf("got %+v out of the chain", failed)
	}
}

func TestFailAllFailsEveryOperation(t *testing.T) {
	err := transport.FailAll(3, io.EOF)
	var failed *transport.DispatchError
	if !errors.As(err, &failed) {
		t.Fatalf("got %T, want a DispatchError", err)
	}
	if failed.Total != 3 || len(failed.Ops) != 3 {
		t.Fatalf("%d of %d operations, want 3 of 3", len(failed.Ops), failed.Total)
	}
	for i, op := range failed.Ops {
		if op.Index != i || op.Err != io.EOF { //nolint:errorlint // the very same error
			t.Errorf("operation %d is %+v", i, op)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is hidden")
	}
}

func TestFailAllWithoutErrorOrOperations(t *testing.T) {
	if err := transport.FailAll(3, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if err := transport.FailAll(0, nil); err != nil {
		t.Errorf("nothing became %v", err)
	}
	if err := transport.FailAll(0, io.EOF); err != io.EOF { //nolint:errorlint // the very same error
		t.Errorf("an error of no operations became %v", err)
	}
}
