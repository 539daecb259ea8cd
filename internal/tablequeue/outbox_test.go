package tablequeue

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/transport"
)

// newInbox returns a fake with the queue "a" and the inbox "a.handled".
func newInbox(t testing.TB) *fake {
	t.Helper()
	f := newFake("a")
	if err := f.Install(t.Context(), transport.Plan{Inboxes: []string{"a.handled"}}); err != nil {
		t.Fatal(err)
	}
	return f
}

func keyOf(n byte) transport.HandledKey { return transport.HandledKey{ID: [16]byte{n}, Sum: uint32(n)} }

func entry(k transport.HandledKey, ops ...transport.Operation) transport.OutboxEntry {
	return transport.OutboxEntry{Inbox: "a.handled", Key: &k, Ops: ops}
}

func TestLooksForHandledMessagesShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		if err := c.Store(t.Context(), entry(keyOf(7))); err != nil {
			t.Fatal(err)
		}
		answer := make(chan struct{})
		f.onFind = func() error { <-answer; return nil }
		var wg sync.WaitGroup
		for n := range byte(20) {
			wg.Go(func() {
				got, err := c.FindHandled(t.Context(), "a.handled", []transport.HandledKey{keyOf(n)})
				if want := n == 7; err != nil || (got[0] == transport.Handled) != want {
					t.Errorf("key %d is %v (%v)", n, got, err)
				}
			})
			synctest.Wait()
		}
		close(answer)
		wg.Wait()
		if n := f.callsOf("find"); n != 3 { // one for each flusher, and one for all that waited
			t.Errorf("20 looks were %d requests, want 3", n)
		}
	})
}

// The states of more keys than one request has are in the order of the keys.
func TestALookForManyKeysKeepsTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		if err := c.Store(t.Context(), entry(keyOf(7))); err != nil {
			t.Fatal(err)
		}
		keys := make([]transport.HandledKey, 2*maxFound+1)
		for i := range keys {
			keys[i] = transport.HandledKey{ID: [16]byte{1, byte(i), byte(i >> 8)}}
		}
		const at = maxFound + 3
		keys[at] = keyOf(7)
		got, err := c.FindHandled(t.Context(), "a.handled", keys)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("%d states of %d keys (%v)", len(got), len(keys), err)
		}
		for i, state := range got {
			if (state == transport.Handled) != (i == at) {
				t.Errorf("key %d is %v", i, state)
			}
		}
	})
}

func TestALookThatFailsSaysWhetherTheDatabaseIsReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		for _, tt := range []struct{ err, want error }{{errAway, transport.ErrUnreachable}, {errUnknown, transport.ErrUnreachable}, {errRefused, errRefused}} {
			f.onFind = func() error { return tt.err }
			for _, keys := range [][]transport.HandledKey{{keyOf(1)}, {keyOf(1), keyOf(2)}} {
				_, err := c.FindHandled(t.Context(), "a.handled", keys)
				if !errors.Is(err, tt.want) || errors.Is(err, transport.ErrUnreachable) != (tt.want == transport.ErrUnreachable) { //nolint:errorlint // the want itself
					t.Errorf("%d keys, after %v: %v, want %v", len(keys), tt.err, err, tt.want)
				}
			}
		}
		f.onFind = nil
		_, err := c.FindHandled(t.Context(), "missing", []transport.HandledKey{keyOf(1)})
		isErr(t, err, transport.ErrNoQueue)
	})
}

// An entry whose id is known fails alone, also where a neighbour in its batch recorded the id.
func TestAnEntryWithAKnownIDFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		busy := make(chan struct{})
		f.onFlush = func([]*Unit) error { <-busy; return nil }
		var mu sync.Mutex
		var handled []byte
		var wg sync.WaitGroup
		for _, n := range []byte{1, 2, 3, 3, 2, 4} {
			wg.Go(func() {
				err := c.Store(t.Context(), entry(keyOf(n), op("a", "x")))
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, transport.ErrAlreadyHandled) {
					handled = append(handled, n)
				} else if err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		close(busy)
		wg.Wait()
		slices.Sort(handled)
		if !slices.Equal(handled, []byte{2, 3}) || f.count("a") != 4 {
			t.Errorf("keys %v were handled before and %d messages sent, want 2, 3 and 4", handled, f.count("a"))
		}
	})
}

// What a flush reports of units before it fails does not count: it was rolled back.
func TestResultsOfAFlushThatFailedAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		flushes := 0
		f.onFlush = func(units []*Unit) error {
			if flushes++; flushes > 1 {
				return nil
			}
			for _, u := range units {
				u.Handled, u.Lost = true, true
			}
			return errConflict
		}
		if err := c.Store(t.Context(), entry(keyOf(1), op("a", "1"))); err != nil {
			t.Errorf("a repeated Store returned %v", err)
		}
		flushes = 0
		if err := c.Store(t.Context(), entry(keyOf(2), op("a", "1"), op("missing", "2"))); !errors.Is(err, transport.ErrNoQueue) {
			t.Errorf("a refused Store returned %v", err)
		}
		if n := f.count("a"); n != 1 {
			t.Errorf("%d messages were stored, want 1", n)
		}
	})
}

// After an answer that was lost, an entry may be stored. After a refusal, or without a database, it
// is not.
func TestAnEntryInDoubtIsSaidToBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newInbox(t)
		c := open(t, f)
		for _, tt := range []struct{ err, want error }{
			{errUnknown, transport.ErrOutcomeUnknown}, {errAway, transport.ErrUnreachable}, {errRefused, errRefused},
		} {
			f.onFlush = func([]*Unit) error { return tt.err }
			tx, err := c.BeginStore(t.Context(), entry(keyOf(1), op("a", "1")))
			isErr(t, err, nil)
			for name, err := range map[string]error{
				"Store":    c.Store(t.Context(), entry(keyOf(1), op("a", "1"))),
				"Complete": tx.Complete(t.Context(), nil),
			} {
				isErr(t, err, tt.want)
				for _, other := range []error{transport.ErrOutcomeUnknown, transport.ErrUnreachable} {
					if errors.Is(err, other) && other != tt.want { //nolint:errorlint // the want itself
						t.Errorf("%s after %v: %v", name, tt.err, err)
					}
				}
			}
		}
	})
}
