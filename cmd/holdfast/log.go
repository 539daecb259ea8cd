package main

import (
	"fmt"
	"io"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"
)

// logOff is the level that silences the log.
const logOff = "off"

// newLogger makes a logger that writes to w through zap. An empty level is warn.
func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var encoder zapcore.Encoder
	switch format {
	case "console":
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoder = zapcore.NewConsoleEncoder(c)
	case "json":
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		encoder = zapcore.NewJSONEncoder(c)
	default:
		return nil, fmt.Errorf("--log-format %q: want console or json", format)
	}
	l := zapcore.WarnLevel
	switch level {
	case "":
	case logOff:
		return slog.New(slog.DiscardHandler), nil
	case "debug", "info", "warn", "error":
		l, _ = zapcore.ParseLevel(level)
	default:
		return nil, usagef("--log-level %q: want debug, info, warn, error or off", level)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), l)
	never := zapslog.AddStacktraceAt(slog.Level(1 << 10)) // panics carry their own
	return slog.New(zapslog.NewHandler(core, never)), nil
}
