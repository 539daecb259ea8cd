package inmemory_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// outbox connects to t's broker, with the inbox "handled" and the queue "outbox".
func outbox(tb testing.TB, t *inmemory.Transport, remember time.Duration) transport.OutboxStore {
	tb.Helper()
	conn, err := t.Open(tb.Context(), transport.Env{Remember: remember})
	if err != nil {
		tb.Fatal(err)
	}
	plan := transport.Plan{Queues: []transport.Queue{{Name: "outbox"}}, Inboxes: []string{"handled"}}
	if err := conn.(transport.Installer).Install(tb.Context(), plan); err != nil {
		tb.Fatal(err)
	}
	return conn.(transport.OutboxStore)
}

func key(id byte) *transport.HandledKey { return &transport.HandledKey{ID: [16]byte{id}, Sum: 1} }

func record(tb testing.TB, o transport.OutboxStore, keys ...byte) {
	tb.Helper()
	for _, id := range keys {
		if err := o.Store(tb.Context(), transport.OutboxEntry{Inbox: "handled", Key: key(id)}); err != nil {
			tb.Fatal(err)
		}
	}
}

func inspect(tb testing.TB, o transport.OutboxStore) transport.InboxStats {
	tb.Helper()
	stats, err := o.(transport.InboxInspector).InspectInbox(tb.Context(), "handled")
	if err != nil {
		tb.Fatal(err)
	}
	return stats
}

func TestAnInboxForgetsIDsThatAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outbox(t, &inmemory.Transport{}, 90*time.Minute)
		record(t, o, 1)
		time.Sleep(40 * time.Minute)
		record(t, o, 2)
		time.Sleep(50 * time.Minute)
		want := transport.InboxStats{Name: "handled", Rows: 2, Bytes: 176, LastHour: 1, Oldest: 90 * time.Minute}
		if diff := cmp.Diff(want, inspect(t, o)); diff != "" {
			t.Error(diff)
		}
		time.Sleep(time.Nanosecond)
		states, err := o.FindHandled(t.Context(), "handled", []transport.HandledKey{*key(1), *key(2)})
		if diff := cmp.Diff([]transport.HandledState{transport.NotHandled, transport.Handled}, states); err != nil || diff != "" {
			t.Error(err, diff)
		}
		record(t, o, 1)
	})
}

// An inbox keeps an id that was forgotten and recorded again.
func TestAnInboxKeepsAnIDRecordedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outbox(t, &inmemory.Transport{}, time.Hour)
		record(t, o, 1)
		time.Sleep(time.Minute)
		n, err := o.(transport.InboxInspector).ForgetHandled(t.Context(), "handled", []transport.HandledKey{*key(1), *key(1)})
		if err != nil || n != 1 {
			t.Fatalf("ForgetHandled returned %d and %v, want 1", n, err)
		}
		record(t, o, 1)
		time.Sleep(time.Hour)
		if got := inspect(t, o).Rows; got != 1 {
			t.Errorf("%d ids, want 1", got)
		}
		time.Sleep(time.Nanosecond)
		if got := inspect(t, o).Rows; got != 0 {
			t.Errorf("%d ids, want none", got)
		}
	})
}

func TestWithoutRememberNoIDIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outbox(t, &inmemory.Transport{}, 0)
		record(t, o, 1)
		time.Sleep(1000 * time.Hour)
		if got := inspect(t, o).Rows; got != 1 {
			t.Errorf("%d ids, want 1", got)
		}
	})
}

func TestAStoreTransactionWritesWithItsRecord(t *testing.T) {
	broker := &inmemory.Transport{}
	o := outbox(t, broker, 0)
	written := 0
	for i, want := range []error{nil, transport.ErrAlreadyHandled} {
		e := transport.OutboxEntry{Inbox: "handled", Key: key(1), Ops: []transport.Operation{to("outbox", "1")}}
		tx, err := o.BeginStore(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if err := inmemory.OnCommit(t.Context(), session{tx: tx}, func() { written++ }); err != nil {
			t.Fatal(err)
		}
		if err := tx.Complete(t.Context(), []transport.Operation{to("outbox", "2")}); !errors.Is(err, want) {
			t.Fatalf("transaction %d: %v, want %v", i, err, want)
		}
	}
	waiting(t, broker, "outbox", "1", "2")
	if written != 1 {
		t.Errorf("written %d times, want once", written)
	}
}

func TestVerifyReportsAMissingInbox(t *testing.T) {
	conn := open(t, &inmemory.Transport{})
	plan := transport.Plan{Inboxes: []string{"handled"}}
	want := []transport.Finding{{Kind: "inbox", Name: "handled", State: transport.Missing}}
	for range 2 {
		found, err := conn.(transport.Verifier).Verify(t.Context(), plan)
		if diff := cmp.Diff(want, found); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
		if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		want = nil
	}
}
