// Package safelog keeps a log handler that panics from ending the process.
package safelog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
)

// New returns a logger that writes to the handler of l. A panic of the handler loses the line. The first panic is reported on
// standard error, with its stack. A logger that New has returned is returned unchanged.
func New(l *slog.Logger) *slog.Logger { return reportTo(l, os.Stderr) }

func reportTo(l *slog.Logger, out io.Writer) *slog.Logger {
	if _, safe := l.Handler().(handler); safe {
		return l
	}
	return slog.New(handler{l.Handler(), &report{out: out}})
}

// handler is a handler of the user's, and what derives from one by WithAttrs and WithGroup.
type handler struct {
	users  slog.Handler
	report *report
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

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	defer h.recovered()
	return h.users.Handle(ctx, r)
}

// WithAttrs returns h itself if the handler panics.
func (h handler) WithAttrs(attrs []slog.Attr) (with slog.Handler) {
	with = h
	defer h.recovered()
	return handler{h.users.WithAttrs(attrs), h.report}
}

// WithGroup returns h itself if the handler panics.
func (h handler) WithGroup(name string) (with slog.Handler) {
	with = h
	defer h.recovered()
	return handler{h.users.WithGroup(name), h.report}
}
