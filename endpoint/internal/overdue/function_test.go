package overdue

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts how often it is told that a call is late.
type counted struct{ late atomic.Int32 }

func (c *counted) Late() { c.late.Add(1) }

// lines is the log of a watch.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// watched runs test with a watch and a call that runs.
func watched(t *testing.T, test func(w *Watch, c *Call, told *counted, log *lines)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		w, told := New(slog.New(slog.NewTextHandler(&log, nil))), &counted{}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go w.Run(ctx)
		c := &Call{Observer: told}
		w.Begin(c, "q", "m", 0)
		test(w, c, told, &log)
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Each function of a call that has not returned after Patience is late, once.
func TestAFunctionIsLateAfterPatience(t *testing.T) {
	watched(t, func(w *Watch, c *Call, told *counted, log *lines) {
		first, second := "first", "second"
		c.EnterFunction(&first)
		pass(Patience - time.Second)
		if len(w.LateFunctions()) > 0 || len(log.String()) > 0 {
			t.Errorf("early: %v, %s", w.LateFunctions(), log)
		}
		pass(time.Hour)
		late := w.LateFunctions()
		if len(late) != 1 || late[0].Handler != "first" || late[0].Running < time.Hour-time.Second || len(w.Late("q")) != 1 || told.late.Load() != 1 {
			t.Errorf("late are %v, told %d times", late, told.late.Load())
		}
		c.EnterFunction(&second)
		pass(5 * time.Second)
		if late := w.LateFunctions(); len(late) > 0 {
			t.Errorf("5 s after the second function has begun: %v", late)
		}
		pass(time.Minute)
		c.LeaveFunction()
		if late := w.LateFunctions(); len(late) > 0 {
			t.Errorf("after the functions have returned: %v", late)
		}
		w.End(c)
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "function=second message=m queue=q") || told.late.Load() != 2 {
			t.Errorf("the log has\n%s, told %d times", text, told.late.Load())
		}
	})
}

// The time of the endpoint's own code within a call does not count.
func TestASuspendedCallIsNotLate(t *testing.T) {
	watched(t, func(w *Watch, c *Call, told *counted, log *lines) {
		name := "stage"
		c.EnterFunction(&name)
		pass(5 * time.Second)
		w.Suspend(c)
		pass(time.Hour)
		if len(w.LateFunctions()) > 0 || len(w.Running(0)) > 0 {
			t.Errorf("suspended: late are %v, running %v", w.LateFunctions(), w.Running(0))
		}
		w.Resume(c)
		pass(Patience - time.Second)
		if n := len(w.Running(Patience)); n > 0 || len(w.LateFunctions()) > 0 {
			t.Errorf("resumed: late are %v, %d run", w.LateFunctions(), n)
		}
		pass(3 * time.Second)
		if len(w.LateFunctions()) != 1 || len(w.Running(Patience)) != 1 {
			t.Errorf("resumed for long: late are %v", w.LateFunctions())
		}
		w.End(c)
		w.Suspend(c)
		w.Resume(c)
		if n := len(w.Running(0)); n > 0 {
			t.Errorf("%d calls run after the end", n)
		}
	})
}

// A call that its caller has left is late, and does not hold up a stop.
func TestALeftCallDoesNotRun(t *testing.T) {
	watched(t, func(w *Watch, c *Call, told *counted, log *lines) {
		name := "notify"
		c.EnterFunction(&name)
		w.Leave(c)
		pass(time.Minute)
		if len(w.LateFunctions()) != 1 || len(w.Late("q")) > 0 || len(w.Running(0)) > 0 {
			t.Errorf("late are %v, in the queue %v, running %v", w.LateFunctions(), w.Late("q"), w.Running(0))
		}
		w.End(c)
		if len(w.LateFunctions()) > 0 {
			t.Error("late after the end")
		}
	})
}
