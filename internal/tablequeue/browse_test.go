package tablequeue

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

// browsing is a cursor on a queue of a store, with its first page of messages.
func browsing(t *testing.T, f *fake, limit int) (transport.Cursor, []*transport.Message) {
	t.Helper()
	c := open(t, f)
	cur, err := c.Browse(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	ms, err := cur.Next(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	return cur, ms
}

func withRows(n int) *fake {
	f := newFake("in", "out")
	for i := range n {
		f.insert(&Row{Queue: "in", ID: fmt.Sprint("m-", i), Headers: []byte("{}")})
	}
	return f
}

func TestTakeTriesAgainAfterAConflict(t *testing.T) {
	f := withRows(1)
	tries := 0
	f.onFlush = func([]*Unit) error {
		if tries++; tries < 3 {
			return errConflict
		}
		return nil
	}
	cur, ms := browsing(t, f, 1)
	if err := cur.Take(t.Context(), ms[0], nil); err != nil || tries != 3 || f.count("in") != 0 {
		t.Errorf("%v after %d tries, %d rows left", err, tries, f.count("in"))
	}
}

func TestTakeWithoutAnAnswerHasAnUnknownOutcome(t *testing.T) {
	f := withRows(1)
	f.onFlush = func([]*Unit) error { return errUnknown }
	cur, ms := browsing(t, f, 1)
	if err := cur.Take(t.Context(), ms[0], nil); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("error %v, want ErrOutcomeUnknown", err)
	}
}

func TestRowsThatAreLeasedShowAndCannotBeTaken(t *testing.T) {
	f := withRows(2)
	c := open(t, f)
	if _, err := receiverOf(t, c, "in").Receive(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	cur, err := c.Browse(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	ms, err := cur.Next(t.Context(), 10)
	if err != nil || len(ms) != 2 {
		t.Fatalf("%d messages, %v, want both", len(ms), err)
	}
	if err := cur.Take(t.Context(), ms[0], nil); !errors.Is(err, transport.ErrNotFound) {
		t.Errorf("take what is leased: %v, want ErrNotFound", err)
	}
	if err := cur.Take(t.Context(), &transport.Message{ID: "foreign"}, nil); !errors.Is(err, transport.ErrNotFound) {
		t.Errorf("take what was not browsed: %v, want ErrNotFound", err)
	}
	if err := cur.Take(t.Context(), ms[1], nil); err != nil {
		t.Errorf("take what is not: %v", err)
	}
}

func TestAClosedCursorDoesNothing(t *testing.T) {
	cur, ms := browsing(t, withRows(1), 1)
	if err := cur.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := cur.Next(t.Context(), 1); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Next: %v", err)
	}
	if err := cur.Take(t.Context(), ms[0], nil); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Take: %v", err)
	}
}
