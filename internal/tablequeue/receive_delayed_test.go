package tablequeue

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// delayedFake is a store with a table of delayed messages, of which each call of MoveDue takes what
// is next in moves.
type delayedFake struct {
	*fake

	mu     sync.Mutex // guards the rest
	exists bool
	err    error
	due    []time.Time // in order
	looks  []time.Time
	moves  []time.Time
}

func (f *delayedFake) parts() Store {
	s := f.fake.parts()
	s.DelayedTables = f
	return s
}

func (f *delayedFake) HasDelayed(context.Context, string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks = append(f.looks, time.Now())
	return f.exists, f.err
}

func (f *delayedFake) MoveDue(_ context.Context, queue string, limit int) (moved int, next time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moves = append(f.moves, time.Now())
	switch {
	case f.err != nil:
		return 0, 0, f.err
	case !f.exists:
		return 0, 0, transport.ErrNoQueue
	}
	for len(f.due) > 0 && moved < limit {
		if next = time.Until(f.due[0]); next > 0 {
			return moved, next, nil
		}
		f.due = f.due[1:]
		moved++
		f.fake.mu.Lock()
		f.insert(&Row{Queue: queue, ID: "moved", Headers: []byte("{}")})
		f.fake.mu.Unlock()
	}
	return moved, 0, nil
}

func (f *delayedFake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func openDelayed(t *testing.T, logs *bytes.Buffer) *delayedFake {
	f := &delayedFake{fake: newFake("q", "q.forwards")}
	log := slog.New(slog.NewTextHandler(logs, nil))
	c := Open(f.parts(), Config{Env: transport.Env{Logger: log}})
	t.Cleanup(func() { _ = c.Close() })
	for range 2 { // one mover, however often receiving begins
		receiverOf(t, c, "q")
	}
	receiverOf(t, c, "q.forwards") // which has none
	return f
}

func TestATableOfDelayedMessagesIsLookedForEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		f := openDelayed(t, &logs)
		began := time.Now()
		time.Sleep(3*lookEvery - time.Second)
		f.set(func() {
			if len(f.looks) != 3 || len(f.moves) != 0 {
				t.Errorf("%d looks and %d moves, want 3 and none", len(f.looks), len(f.moves))
			}
			f.exists = true
			f.due = append(f.due, time.Now(), began.Add(3*lookEvery+300*time.Millisecond))
			for range 3 * moveRows {
				f.due = append(f.due, began.Add(3*lookEvery+500*time.Millisecond))
			}
		})
		time.Sleep(2 * time.Second)
		f.set(func() {
			if len(f.due) != 0 || f.count("q") != 3*moveRows+2 {
				t.Errorf("%d messages are not moved, %d are in the queue", len(f.due), f.count("q"))
			}
			for i, after := range []time.Duration{0, 301 * time.Millisecond, 501 * time.Millisecond, 501 * time.Millisecond} {
				if got := f.moves[i].Sub(began) - 3*lookEvery; got != after {
					t.Errorf("move %d after %v, want %v", i, got, after)
				}
			}
			f.exists = false // removed
		})
		time.Sleep(lookEvery)
		f.set(func() {
			if n := len(f.looks); n != 4 {
				t.Errorf("%d looks before the table is looked for again, want 4", n)
			}
		})
		if n := strings.Count(logs.String(), "delayed messages of NServiceBus were found"); n != 1 {
			t.Errorf("%d log lines, want 1:\n%s", n, logs.String())
		}
	})
}

func TestAnOutageOfDelayedMessagesIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		f := openDelayed(t, &logs)
		f.set(func() { f.exists = true })
		time.Sleep(lookEvery + time.Second)
		f.set(func() { f.err = errors.New("no permission") })
		time.Sleep(time.Hour)
		f.set(func() {
			if n := len(f.moves); n > 200 {
				t.Errorf("%d moves during an outage of an hour", n)
			}
			f.err = nil
			f.due = []time.Time{time.Now()}
		})
		time.Sleep(lookEvery)
		if n := f.count("q"); n != 1 {
			t.Errorf("%d messages were moved after the outage, want 1", n)
		}
		if n := strings.Count(logs.String(), "are not moved"); n != 1 {
			t.Errorf("%d log lines, want 1:\n%s", n, logs.String())
		}
	})
}
