package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/recoverability"
)

func keyOf(id string) failureKey { return (&incoming{queue: "sales", id: id}).failureKey() }

func said(text string) recoverability.Past { return recoverability.Past{Text: text} }

func texts(past []recoverability.Past) string {
	var all []string
	for _, p := range past {
		all = append(all, p.Text)
	}
	return strings.Join(all, " ")
}

func TestFailuresAreCountedByMessageAndQueue(t *testing.T) {
	f := failureMemory{messages: 10, bytes: 1000}
	a, b := keyOf("a"), (&incoming{queue: "sales-1", id: "a"}).failureKey()
	if f.knows(a) {
		t.Error("it knows a message that has not failed")
	}
	f.lose(a)
	for want := 1; want <= 3; want++ {
		if got := f.count(a, time.Unix(0, 0), false); got.failed != want || got.lost != 1 {
			t.Errorf("%d failures and %d lost leases, want %d and 1", got.failed, got.lost, want)
		}
	}
	if got := f.count(b, time.Unix(0, 0), false); got.failed != 1 || got.lost != 0 {
		t.Errorf("another queue's message has %d failures and %d lost leases", got.failed, got.lost)
	}
	if got := f.count(a, time.Unix(0, 0), true); got.failed != 1 || got.lost != 0 {
		t.Errorf("in a new cycle there are %d failures and %d lost leases, want 1 and 0", got.failed, got.lost)
	}
	f.forget(a)
	f.forget(a)
	if f.knows(a) || !f.knows(b) {
		t.Error("it forgot the wrong message")
	}
}

func TestTheMessageThatFailedLongestAgoIsForgottenFirst(t *testing.T) {
	f := failureMemory{messages: 3, bytes: 1000}
	for _, id := range []string{"a", "b", "c", "a", "d", "e"} {
		f.count(keyOf(id), time.Unix(0, 0), false)
	}
	for id, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true, "e": true} {
		if f.knows(keyOf(id)) != want {
			t.Errorf("knows %s: %v", id, !want)
		}
	}
	if got := f.count(keyOf("a"), time.Unix(0, 0), false).failed; got != 3 {
		t.Errorf("%d failures of a, want 3", got)
	}
}

func TestTheLastFailuresOfAMessageAreRemembered(t *testing.T) {
	f := failureMemory{messages: 3, bytes: 1 << 20}
	var given []recoverability.Past
	for i := range 13 {
		before := f.count(keyOf("a"), time.Unix(0, 0), false).past
		if i == 10 {
			given = before
		}
		f.note(keyOf("a"), said(fmt.Sprint(i)))
	}
	if diff := cmp.Diff("3 4 5 6 7 8 9 10 11 12", texts(f.count(keyOf("a"), time.Unix(0, 0), false).past)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("0 1 2 3 4 5 6 7 8 9", texts(given)); diff != "" {
		t.Error("what was given out changed:", diff)
	}
	f.note(keyOf("unknown"), said("x"))
	if f.knows(keyOf("unknown")) {
		t.Error("a message that was never counted is known")
	}
}

func TestOverTheBoundOfTextsTheCountsStay(t *testing.T) {
	f := failureMemory{messages: 100, bytes: 10 * (100 + 5)}
	for i := range 50 {
		key := keyOf(fmt.Sprint(i))
		f.count(key, time.Unix(0, 0), false)
		f.note(key, said(fmt.Sprintf("%05d", i)))
		if f.said > f.bytes {
			t.Fatalf("%d bytes are remembered, want at most %d", f.said, f.bytes)
		}
	}
	for i := range 50 {
		m := f.count(keyOf(fmt.Sprint(i)), time.Unix(0, 0), false)
		if m.failed != 2 || len(m.past) != 0 != (i >= 40) {
			t.Errorf("message %d: %d failures, texts %q", i, m.failed, texts(m.past))
		}
	}
}

func TestWhatIsForgottenTakesNoRoom(t *testing.T) {
	f := failureMemory{messages: 5, bytes: 2000}
	for i := range 1000 {
		key := keyOf(fmt.Sprint(i % 17))
		f.count(key, time.Unix(0, 0), i%5 == 0)
		f.note(key, said(strings.Repeat("x", i%300)))
		if i%3 == 0 {
			f.forget(key)
		}
	}
	said := 0
	for el := f.order.Front(); el != nil; el = el.Next() {
		said += size(entry(el).past)
	}
	if f.said != said || f.order.Len() > 5 || f.order.Len() != len(f.entries) {
		t.Errorf("%d bytes are counted and %d there, in %d messages and %d entries", f.said, said, f.order.Len(), len(f.entries))
	}
}

func TestFailuresOfManyGoroutines(t *testing.T) {
	f := failureMemory{messages: 8, bytes: 1000}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				key := keyOf(fmt.Sprint((g + i) % 12))
				m := f.count(key, time.Unix(0, 0), false)
				_ = append(m.past, said("mine")) // has no effect on what is remembered
				f.note(key, said("theirs"))
				f.lose(key)
				if i%7 == 0 {
					f.forget(key)
				}
			}
		})
	}
	wg.Wait()
	for el := f.order.Front(); el != nil; el = el.Next() {
		if slices.Contains(entry(el).past, said("mine")) {
			t.Error("what a caller appended is remembered")
		}
	}
}
