package zaplog_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/holdfast-go/holdfast/telemetry/zaplog"
)

func TestLinesArriveAtZapWithLevelNameAndFields(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	l := zaplog.New(zap.New(core).Named("billing").With(zap.String("region", "eu")))

	l.DebugContext(t.Context(), "not logged at this level")
	l.WarnContext(t.Context(), "connection lost", slog.String("queue", "orders"), slog.Int("attempt", 2))

	want := []observer.LoggedEntry{{
		Entry: zapcore.Entry{Level: zap.WarnLevel, LoggerName: "billing", Message: "connection lost"},
		Context: []zapcore.Field{
			zap.String("region", "eu"), zap.String("queue", "orders"), zap.Int64("attempt", 2),
		},
	}}
	got := logs.AllUntimed()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsHaveNoStackOfTheLogLine(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	zaplog.New(zap.New(core, zap.AddStacktrace(zap.ErrorLevel))).
		ErrorContext(t.Context(), "moved to the error queue", slog.Any("error", errors.New("no funds")))

	entry := logs.All()[0]
	if entry.Stack != "" {
		t.Errorf("stack: %s", entry.Stack)
	}
	if got := entry.ContextMap()["error"]; got != "no funds" {
		t.Errorf("error is %v, want its text", got)
	}
}

func TestOptionsWin(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	zaplog.New(zap.New(core).Named("billing"), zapslog.WithName("other"), zapslog.WithCaller(true)).
		InfoContext(t.Context(), "ready")

	entry := logs.All()[0]
	if entry.LoggerName != "other" || !entry.Caller.Defined {
		t.Errorf("name %q, caller %v: want other, and this test", entry.LoggerName, entry.Caller)
	}
}

func TestNilDiscards(t *testing.T) {
	l := zaplog.New(nil)
	if l.Enabled(t.Context(), slog.LevelError) {
		t.Error("a logger for nil is enabled")
	}
}
