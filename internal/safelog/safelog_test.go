package safelog

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
)

// panicking is a handler that panics where its field says.
type panicking struct{ enabled, handle, attrs, group bool }

func when(is bool) {
	if is {
		panic("no more paper")
	}
}

func (p panicking) Enabled(context.Context, slog.Level) bool  { when(p.enabled); return true }
func (p panicking) Handle(context.Context, slog.Record) error { when(p.handle); return nil }
func (p panicking) WithAttrs([]slog.Attr) slog.Handler        { when(p.attrs); return p }
func (p panicking) WithGroup(string) slog.Handler             { when(p.group); return p }

func TestAPanicOfTheHandlerIsReportedOnce(t *testing.T) {
	for name, p := range map[string]panicking{
		"Enabled": {enabled: true}, "Handle": {handle: true}, "WithAttrs": {attrs: true}, "WithGroup": {group: true},
	} {
		var out bytes.Buffer
		l := reportTo(slog.New(p), &out)
		for range 3 {
			l.Info("one", "a", 1)
			l.With("b", 2).WithGroup("g").Error("two")
		}
		if n := strings.Count(out.String(), "no more paper"); n != 1 {
			t.Errorf("%s: the panic is reported %d times", name, n)
		}
		if !strings.Contains(out.String(), "safelog_test.go") {
			t.Errorf("%s: the report has no stack:\n%s", name, &out)
		}
	}
}

func TestASoundHandlerWritesTheSameLines(t *testing.T) {
	var safe, plain, report bytes.Buffer
	options := &slog.HandlerOptions{AddSource: true, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	write := func(l *slog.Logger) { l.With("a", 1).WithGroup("g").Warn("text", "b", 2) }
	for _, l := range []*slog.Logger{
		reportTo(slog.New(slog.NewTextHandler(&safe, options)), &report), slog.New(slog.NewTextHandler(&plain, options)),
	} {
		write(l)
	}
	if safe.String() != plain.String() || report.Len() > 0 {
		t.Errorf("got %q, want %q; reported %q", &safe, &plain, &report)
	}
	l := New(slog.New(slog.DiscardHandler))
	if New(l) != l {
		t.Error("a safe logger is wrapped again")
	}
	if l.Enabled(t.Context(), slog.LevelError) {
		t.Error("a handler that takes nothing is said to take errors")
	}
}
