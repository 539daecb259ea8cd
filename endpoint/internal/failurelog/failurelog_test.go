package failurelog

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

func keyOf(id string) Key { return KeyOf("sales", id) }

func said(text string) recoverability.Past { return recoverability.Past{Text: text} }

func texts(past []recoverability.Past) string {
	var all []string
	for _, p := range past {
		all = append(all, p.Text)
	}
	return strings.Join(all, " ")
}

func TestFailuresAreCountedByMessageAndQueue(t *testing.T) {
	f := New(10, 1000)
	a, b := keyOf("a"), KeyOf("sales-1", "a")
	if has(f, a) {
		t.Error("a message that has not failed is known")
	}
	f.LeaseLost(a)
	for want := 1; want <= 3; want++ {
		if got := f.Count(a, time.Unix(0, 0), false); got.Failed != want || got.Lost != 1 {
			t.Errorf("%d failures and %d lost leases, want %d and 1", got.Failed, got.Lost, want)
		}
	}
	if got := f.Count(b, time.Unix(0, 0), false); got.Failed != 1 || got.Lost != 0 {
		t.Errorf("another queue's message has %d failures and %d lost leases", got.Failed, got.Lost)
	}
	if got := f.Count(a, time.Unix(0, 0), true); got.Failed != 1 || got.Lost != 0 {
		t.Errorf("in a new cycle there are %d failures and %d lost leases, want 1 and 0", got.Failed, got.Lost)
	}
	f.Forget(a)
	f.Forget(a)
	if has(f, a) || !has(f, b) {
		t.Error("the wrong message is forgotten")
	}
}

func TestTheMessageThatFailedLongestAgoIsForgottenFirst(t *testing.T) {
	f := New(3, 1000)
	for _, id := range []string{"a", "b", "c", "a", "d", "e"} {
		f.Count(keyOf(id), time.Unix(0, 0), false)
	}
	for id, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true, "e": true} {
		if has(f, keyOf(id)) != want {
			t.Errorf("knows %s: %v", id, !want)
		}
	}
	if got := f.Count(keyOf("a"), time.Unix(0, 0), false).Failed; got != 3 {
		t.Errorf("%d failures of a, want 3", got)
	}
}

func TestTheLastFailuresOfAMessageAreRemembered(t *testing.T) {
	f := New(3, 1<<20)
	var given []recoverability.Past
	for i := range 13 {
		before := f.Count(keyOf("a"), time.Unix(0, 0), false).Past
		if i == 10 {
			given = before
		}
		f.Record(keyOf("a"), said(fmt.Sprint(i)))
	}
	if diff := cmp.Diff("3 4 5 6 7 8 9 10 11 12", texts(f.Count(keyOf("a"), time.Unix(0, 0), false).Past)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("0 1 2 3 4 5 6 7 8 9", texts(given)); diff != "" {
		t.Error("a returned slice has changed:", diff)
	}
	f.Record(keyOf("unknown"), said("x"))
	if has(f, keyOf("unknown")) {
		t.Error("a message that was never counted is known")
	}
}

func TestOverTheBoundOfTextsTheCountsStay(t *testing.T) {
	f := New(100, 10*(100+5))
	for i := range 50 {
		key := keyOf(fmt.Sprint(i))
		f.Count(key, time.Unix(0, 0), false)
		f.Record(key, said(fmt.Sprintf("%05d", i)))
		if f.size > f.bytes {
			t.Fatalf("%d bytes are remembered, want at most %d", f.size, f.bytes)
		}
	}
	for i := range 50 {
		m := f.Count(keyOf(fmt.Sprint(i)), time.Unix(0, 0), false)
		if m.Failed != 2 || len(m.Past) != 0 != (i >= 40) {
			t.Errorf("message %d: %d failures, texts %q", i, m.Failed, texts(m.Past))
		}
	}
}

func TestForgottenFailuresTakeNoRoom(t *testing.T) {
	f := New(5, 2000)
	for i := range 1000 {
		key := keyOf(fmt.Sprint(i % 17))
		f.Count(key, time.Unix(0, 0), i%5 == 0)
		f.Record(key, said(strings.Repeat("x", i%300)))
		if i%3 == 0 {
			f.Forget(key)
		}
	}
	said := 0
	for el := f.order.Front(); el != nil; el = el.Next() {
		said += size(entryOf(el).Past)
	}
	if f.size != said || f.order.Len() > 5 || f.order.Len() != len(f.entries) {
		t.Errorf("%d bytes are counted and %d there, in %d messages and %d entries", f.size, said, f.order.Len(), len(f.entries))
	}
}

func TestFailuresOfManyGoroutines(t *testing.T) {
	f := New(8, 1000)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				key := keyOf(fmt.Sprint((g + i) % 12))
				m := f.Count(key, time.Unix(0, 0), false)
				_ = append(m.Past, said("mine")) // has no effect on what is remembered
				f.Record(key, said("theirs"))
				f.LeaseLost(key)
				if i%7 == 0 {
					f.Forget(key)
				}
			}
		})
	}
	wg.Wait()
	for el := f.order.Front(); el != nil; el = el.Next() {
		if slices.Contains(entryOf(el).Past, said("mine")) {
			t.Error("what a caller appended is remembered")
		}
	}
}

func has(l *Log, key Key) bool {
	_, ok := l.Known(key)
	return ok
}
