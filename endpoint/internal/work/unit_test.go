package work

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/transport"
)

// fakeStore counts its transactions.
type fakeStore struct {
	err           error // of Begin
	begun, undone int
}

type fakeTx struct{ transport.Tx }

func (s *fakeStore) Begin(context.Context, *transport.HandledKey, transport.Delivery) (transport.Tx, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.begun++
	return &fakeTx{}, nil
}

func (s *fakeStore) Undo(context.Context, transport.Tx, string) { s.undone++ }

func message(queue string) transport.Operation {
	return transport.Operation{Queue: queue, Message: &transport.Message{}}
}

func TestAFailedCallIsUndone(t *testing.T) {
	for _, tt := range []struct {
		name       string
		openBefore bool
		undone     int
		second     error
	}{
		{"begun by the call", false, 1, nil},
		{"begun before the call", true, 0, errWritesLeft},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, ctx := new(fakeStore), t.Context()
			u := Unit{Store: store}
			if tt.openBefore {
				_, _ = u.Tx(ctx)
			}
			m, err := u.Begin(ctx, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = u.Tx(ctx)
			_ = u.Keep(message("a"))
			u.Drop(m)
			if _, err := u.Begin(ctx, 0); !errors.Is(err, tt.second) {
				t.Errorf("the second call: %v, want %v", err, tt.second)
			}
			if _, err := u.Begin(ctx, 1); err != nil {
				t.Errorf("another handler: %v", err)
			}
			if store.undone != tt.undone {
				t.Errorf("%d rollbacks, want %d", store.undone, tt.undone)
			}
			if ops, _ := u.End(); len(ops) != 0 {
				t.Errorf("operations of the failed call are left: %v", ops)
			}
		})
	}
}

func TestAUnitThatHasEnded(t *testing.T) {
	store, ctx := new(fakeStore), t.Context()
	u := Unit{Store: store}
	_ = u.Keep(message("a"))
	if _, err := u.Tx(ctx); err != nil {
		t.Fatal(err)
	}
	if ops, tx := u.End(); len(ops) != 1 || tx == nil {
		t.Fatalf("%d operations, transaction %v", len(ops), tx)
	}
	if err := u.Keep(message("b")); !errors.Is(err, ErrOver) {
		t.Errorf("Keep: %v", err)
	}
	if _, err := u.Tx(ctx); !errors.Is(err, ErrOver) {
		t.Errorf("Tx: %v", err)
	}
	u.Rollback(ctx)
	u.Rollback(ctx)
	if store.undone != 1 || u.Begun() != nil {
		t.Errorf("%d rollbacks, transaction %v", store.undone, u.Begun())
	}
}

func TestErrorsOfTheDatabaseAreKept(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		err  error
		kept bool
	}{
		{"the outbox", &DatabaseError{errtree.Mark{Err: broken}}, true},
		{"a context that ended", &ExpiredError{broken}, true},
		{"the message's database", broken, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &fakeStore{err: tt.err}
			u := Unit{Store: store}
			if _, err := u.Tx(t.Context()); !errors.Is(err, broken) {
				t.Errorf("Tx: %v", err)
			}
			if got := u.Failure() != nil; got != tt.kept {
				t.Errorf("Failure: %v", u.Failure())
			}
			store.err = nil
			if _, err := u.Tx(t.Context()); err != nil || u.Failure() != nil {
				t.Errorf("after the outage: %v, %v", err, u.Failure())
			}
		})
	}
}

func TestTheLastCallForATimerCounts(t *testing.T) {
	set := func(name, queue string) transport.Operation {
		op := message(queue)
		op.Name = name
		return op
	}
	cancel := func(name string) transport.Operation { return transport.Operation{Name: name} }
	var u Unit
	for _, op := range []transport.Operation{
		message("a"), set("x", "first"), set("x", "second"), set("y", "b"), cancel("y"), cancel("z"), set("z", "c"),
	} {
		_ = u.Keep(op)
	}
	ops, _ := u.End()
	var queues []string
	for _, op := range ops {
		queues = append(queues, op.Queue)
	}
	if want := []string{"a", "second", "c"}; !slices.Equal(queues, want) {
		t.Errorf("sent to %v, want %v", queues, want)
	}
	if got := u.Cancelled(); !slices.Equal(got, []string{"y"}) {
		t.Errorf("cancelled: %v", got)
	}
}

// Fault headers have the type of the driver's error.
func TestAnErrorOfTheDatabaseIsAMark(t *testing.T) {
	broken := errors.New("broken")
	cause := errtree.Cause(&DatabaseError{errtree.Mark{Err: broken}})
	if cause != broken { //nolint:errorlint // the very error
		t.Errorf("the cause is a %T", cause)
	}
}
