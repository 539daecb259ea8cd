// Package safelog keeps a log handler that panics from ending the process, and a log handler that
// hangs from stopping its callers.
package safelog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// New returns a logger that writes to the handler of l. A panic of the handler loses the line. The
// first panic is reported on standard error, with its stack. A call of the handler that takes
// longer than [Patience] is left: until such calls have returned, lines are dropped and counted,
// see [Stalled]. A logger that New has returned is returned unchanged.
func New(l *slog.Logger) *slog.Logger { return reportTo(l, os.Stderr) }

func reportTo(l *slog.Logger, out io.Writer) *slog.Logger {
	if _, safe := l.Handler().(handler); safe {
		return l
	}
	return slog.New(handler{l.Handler(), &report{out: out}, new(stall)})
}

// handler is a handler of the user's, and what derives from one by WithAttrs and WithGroup.
type handler struct {
	users  slog.Handler
	report *report
	stall  *stall
}

// report writes about the first panic.
type report struct {
	out  io.Writer
	once sync.Once
}

func (r *report) write(v any) {
	stack := debug.Stack()
	r.once.Do(func() {
		fmt.Fprintf(r.out, "holdfast: the log handler panics, and lines of the log are lost: %v\n%s\n", v, stack)
	})
}

// recovered reports a panic. It is deferred.
func (h handler) recovered() {
	if v := recover(); v != nil {
		h.report.write(v)
	}
}

// Enabled reports whether the handler takes lines of a level. One that panics takes none.
func (h handler) Enabled(ctx context.Context, level slog.Level) bool {
	defer h.recovered()
	return h.users.Enabled(ctx, level)
}

// Handle passes a line on in a goroutine of its own, so that the caller can leave it.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	stalled, ok := h.stall.begin()
	if !ok {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { // also if the handler ends its goroutine
			since, lost := h.stall.end()
			done <- err
			if lost > 0 {
				_ = h.handle(ctx, lostLines(since, lost)) // if that line is lost too, Health has named the stall
			}
		}()
		err = h.handle(ctx, r)
	}()
	patience := time.NewTimer(Patience)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-stalled:
	case <-patience.C:
		h.stall.leave()
	}
	return nil
}

func (h handler) handle(ctx context.Context, r slog.Record) error {
	defer h.recovered()
	return h.users.Handle(ctx, r)
}

// WithAttrs returns h itself if the handler panics.
func (h handler) WithAttrs(attrs []slog.Attr) (with slog.Handler) {
	with = h
	defer h.recovered()
	return handler{h.users.WithAttrs(attrs), h.report, h.stall}
}

// WithGroup returns h itself if the handler panics.
func (h handler) WithGroup(name string) (with slog.Handler) {
	with = h
	defer h.recovered()
	return handler{h.users.WithGroup(name), h.report, h.stall}
}
