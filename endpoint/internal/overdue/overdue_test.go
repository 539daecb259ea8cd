package overdue

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/goroutines"
)

// Calls begin and end in any order: the watch has those that run, the longest first.
func TestTheWatchHasTheCallsThatRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(slog.New(slog.DiscardHandler))
		calls := make([]Call, 20)
		var running []int // in the order of their begins
		for step := range 2000 {
			i := rand.IntN(len(calls))
			if at := slices.Index(running, i); at >= 0 {
				w.End(&calls[i])
				running = slices.Delete(running, at, at+1)
			} else {
				w.Begin(&calls[i], "q", strconv.Itoa(i), 0)
				running = append(running, i)
			}
			time.Sleep(time.Millisecond)
			var got, want []string
			for _, l := range w.Running(0) {
				got = append(got, l.Message)
			}
			for _, i := range running {
				want = append(want, strconv.Itoa(i))
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Fatalf("step %d: running are %v, want %v", step, got, want)
			}
		}
	})
}

// The stack of a goroutine is found by its number.
func TestTheStackOfAGoroutineIsFound(t *testing.T) {
	release, id := make(chan struct{}), make(chan uint64)
	go waits(id, release)
	number := <-id
	defer close(release)
	if stack := stacksOf([]uint64{number})[number]; !strings.Contains(stack, "overdue.waits") {
		t.Errorf("the stack of goroutine %d is %q", number, stack)
	}
}

//go:noinline
func waits(id chan<- uint64, release <-chan struct{}) {
	id <- goroutines.ID()
	<-release
}

// observer is called when a call is late.
type observer func()

func (f observer) Late() { f() }

// The line about a late call has the stack of the call, also if the call has ended, and begun again
// for the next attempt, before the line is written.
func TestALateCallIsLoggedWithItsStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines strings.Builder
		w := New(slog.New(slog.NewTextHandler(&lines, nil)))
		release, id, name := make(chan struct{}), make(chan uint64), "a matcher"
		go waits(id, release)
		defer close(release)
		var c Call
		c.Observer = observer(func() {
			w.End(&c)
			w.Begin(&c, "orders", "m-1", 1)
		})
		w.Begin(&c, "orders", "m-1", <-id)
		defer w.End(&c)
		c.EnterFunction(&name)
		w.report(t.Context())
		time.Sleep(Patience)
		w.report(t.Context())
		if !strings.Contains(lines.String(), "overdue.waits") {
			t.Errorf("no stack in %q", lines.String())
		}
	})
}

func BenchmarkCall(b *testing.B) {
	w := New(slog.New(slog.DiscardHandler))
	name := "handler"
	b.ReportAllocs()
	for b.Loop() {
		var c Call
		w.Begin(&c, "q", "m", 1)
		c.Enter(&name)
		w.End(&c)
	}
}
