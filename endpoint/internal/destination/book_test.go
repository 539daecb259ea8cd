package destination_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
)

var errAway = errors.New("away")

// A silent destination is probed after pauses that double from 5 s to 5 min: some 20 times in an
// hour.
func TestASilentDestinationIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b destination.Book
		if unwell, begins := b.Failed("q", destination.Silent, errAway); !unwell || !begins {
			t.Fatal("the state does not begin")
		}
		var after []time.Duration
		for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(time.Second) {
			if b.Admit("q") != destination.Probe {
				continue
			}
			if w := b.Admit("q"); w != destination.Wait {
				t.Errorf("beside a probe, another operation is sent by way %d", w)
			}
			after = append(after, time.Since(began).Round(time.Second))
			b.Failed("q", destination.Silent, errAway)
			b.End("q")
		}
		if len(after) > 20 {
			t.Errorf("%d probes in an hour", len(after))
		}
		want := []time.Duration{5 * time.Second, 15 * time.Second, 35 * time.Second, 75 * time.Second}
		if diff := cmp.Diff(want, after[:4]); diff != "" {
			t.Error(diff)
		}
		if was := b.Answered("q"); was.Kind != destination.Silent || b.Admit("q") != destination.Together {
			t.Errorf("after an answer the state that ended is %+v", was)
		}
	})
}

// One failure without an answer may be that of a connection which was lost. A destination that
// fails alone is unwell at the second.
func TestTheSecondFailureWithoutAnswerCounts(t *testing.T) {
	var b destination.Book
	if unwell, _ := b.Failed("q", destination.Unreachable, errAway); unwell || b.Admit("q") != destination.Together {
		t.Error("unwell after one failure")
	}
	if unwell, begins := b.Failed("q", destination.Unreachable, errAway); !unwell || !begins {
		t.Error("well after two failures")
	}
}

// Operations for a destination that takes long are sent in calls of their own, one at a time.
func TestASlowDestinationIsSentAlone(t *testing.T) {
	var b destination.Book
	b.Slow([]string{"q"})
	if first, second := b.Admit("q"), b.Admit("q"); first != destination.Alone || second != destination.Wait {
		t.Errorf("sent by ways %d and %d", first, second)
	}
	b.Answered("q")
	b.End("q")
	b.Fast([]string{"q"})
	if b.Admit("q") != destination.Together || !b.Calm() {
		t.Error("it is still taken for slow")
	}
}

// The rows of a destination are counted until they are due or called: all when it answers, and one
// for a probe.
func TestRowsAreCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b destination.Book
		stored := time.Now()
		b.Failed("q", destination.Silent, errAway)
		for i := range 1500 {
			b.Postpone("q", destination.Row{Handle: fmt.Sprint(i), Due: time.Now().Add(time.Minute), Stored: stored, Audit: i%3 == 0})
		}
		b.Postpone("q", destination.Row{Due: time.Now().Add(time.Minute), Stored: stored})
		if others, audit := b.Waiting(); others != 1001 || audit != 500 {
			t.Errorf("%d and %d rows wait, want 1001 and 500", others, audit)
		}
		if handles, _, left := b.Call(); len(handles) != 0 || !left {
			t.Errorf("%d rows called before the probe is due", len(handles))
		}
		time.Sleep(5 * time.Second)
		if handles, _, _ := b.Call(); len(handles) != 1 {
			t.Errorf("%d rows called for a probe, want 1", len(handles))
		}
		if handles, _, _ := b.Call(); len(handles) != 0 {
			t.Errorf("%d rows called while one is awaited", len(handles))
		}
		b.Answered("q")
		first, _, _ := b.Call()
		second, _, left := b.Call()
		if len(first) != 1000 || len(second) != 499 || left {
			t.Errorf("%d and %d rows called, want 1000 and 499", len(first), len(second))
		}
		if others, _ := b.Waiting(); others != 1 {
			t.Errorf("%d rows wait, want the one that cannot be called", others)
		}
		if time.Sleep(time.Minute); len(b.States()) != 0 {
			t.Errorf("%+v is left", b.States())
		}
	})
}

// The state of a destination to which nothing is sent any more is forgotten.
func TestAStateWithoutRowsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b destination.Book
		b.Failed("q", destination.Silent, errAway)
		time.Sleep(time.Minute)
		if _, forgotten, left := b.Call(); len(forgotten) != 0 || !left {
			t.Errorf("%+v was forgotten", forgotten)
		}
		time.Sleep(10 * time.Second)
		if _, forgotten, left := b.Call(); len(forgotten) != 1 || left || !b.Calm() {
			t.Errorf("%+v was forgotten, want the state", forgotten)
		}
	})
}
