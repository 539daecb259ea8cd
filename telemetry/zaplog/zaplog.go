// Package zaplog adapts a zap logger to an endpoint.
package zaplog

import (
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
)

// New returns a logger for endpoint.Config.Logger that writes to l, with its level, name and
// fields. If l is nil the logger discards all.
//
// A log entry has no stack trace, also if l adds one: errors contain their own. It has the caller
// if opts contain zapslog.WithCaller. opts override the options of this package.
func New(l *zap.Logger, opts ...zapslog.HandlerOption) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	const aboveAll = slog.Level(1 << 10)
	own := []zapslog.HandlerOption{zapslog.WithName(l.Name()), zapslog.AddStacktraceAt(aboveAll)}
	return slog.New(zapslog.NewHandler(l.Core(), append(own, opts...)...))
}
