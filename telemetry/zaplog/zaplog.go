// Package zaplog lets an endpoint log through zap.
package zaplog

import (
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
)

// New is a logger for endpoint.Config.Logger that writes to l: at its level, with its
// name and fields. A nil l discards.
//
// A line gets no stack trace, whatever l adds to its own: errors that have a stack
// bring it along. It names its caller if opts say so (zapslog.WithCaller). Options come
// after the ones set here, and win.
func New(l *zap.Logger, opts ...zapslog.HandlerOption) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	own := []zapslog.HandlerOption{zapslog.WithName(l.Name()), zapslog.AddStacktraceAt(never)}
	return slog.New(zapslog.NewHandler(l.Core(), append(own, opts...)...))
}

// never is above every level that is logged at.
const never = slog.Level(1 << 10)
