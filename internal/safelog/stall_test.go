package safelog

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a log handler behind a pipe, which is full while the channel has an element.
type pipe struct {
	full chan struct{}

	mu    sync.Mutex // guards lines
	lines []string
}

func (p *pipe) Enabled(context.Context, slog.Level) bool { return true }
func (p *pipe) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p *pipe) WithGroup(string) slog.Handler            { return p }

func (p *pipe) Handle(_ context.Context, r slog.Record) error {
	p.full <- struct{}{}
	defer func() { <-p.full }()
	p.mu.Lock()
	defer p.mu.Unlock()
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.Key + "=" + a.Value.String()
		return true
	})
	p.lines = append(p.lines, text)
	return nil
}

func TestALogThatTakesNothingStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipe{full: make(chan struct{}, 1)}
		l := reportTo(slog.New(p), io.Discard)
		derived := l.With("a", 1).WithGroup("g")
		l.Info("first")
		p.full <- struct{}{}
		began := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { l.Info("left") })
		}
		all.Wait()
		if took := time.Since(began); took != Patience {
			t.Errorf("the callers waited for %v, want %v", took, Patience)
		}
		for range 4 {
			derived.Info("lost")
		}
		if since, lost, stalled := Stalled(derived); !stalled || lost != 4 || !since.Equal(began.Add(Patience)) || time.Since(began) != Patience {
			t.Errorf("stalled is %v since %v, with %d lines lost", stalled, since, lost)
		}
		<-p.full
		synctest.Wait()
		if _, _, stalled := Stalled(l); stalled {
			t.Error("stalled when the calls have returned")
		}
		l.Info("last")
		text := strings.Join(p.lines, "\n")
		if strings.Count(text, "left") != 3 || strings.Contains(text, "\nlost") || !strings.Contains(text, "lost=4") || !strings.HasSuffix(text, "last") {
			t.Errorf("the log:\n%s", text)
		}
	})
}

// exiting is a log handler that ends the goroutine of each call.
type exiting struct{ slog.Handler }

func (exiting) Handle(context.Context, slog.Record) error {
	runtime.Goexit()
	return nil
}

func TestAHandlerThatEndsItsGoroutineStallsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reportTo(slog.New(exiting{slog.DiscardHandler}), io.Discard)
		began := time.Now()
		for range 3 {
			l.Error("line")
		}
		if _, _, stalled := Stalled(l); stalled || time.Since(began) != 0 {
			t.Errorf("stalled is %v after %v", stalled, time.Since(began))
		}
	})
}

// A caller waits for the lines of others no longer than for its own, and a slow handler is not
// stalled.
func TestASlowLogLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipe{full: make(chan struct{}, 1)}
		l := reportTo(slog.New(p), io.Discard)
		for range 3 {
			p.full <- struct{}{}
			time.AfterFunc(Patience-time.Second, func() { <-p.full })
			l.Info("slow")
		}
		if _, _, stalled := Stalled(l); stalled || len(p.lines) != 3 {
			t.Errorf("stalled is %v, with %d lines", stalled, len(p.lines))
		}
	})
	if _, _, stalled := Stalled(slog.Default()); stalled {
		t.Error("another logger is stalled")
	}
}
