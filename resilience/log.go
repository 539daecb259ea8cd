package resilience

import (
	"context"
	"log/slog"
	"time"
)

// LogTo returns an observer that writes a line for each retry, each time-out and each execution
// that failed.
func LogTo(log *slog.Logger) Observer { return logger{log} }

type logger struct{ log *slog.Logger }

// Begin implements [Observer].
func (l logger) Begin(ctx context.Context, p Policy) (context.Context, Observation) {
	return ctx, &logged{ctx, l.log.With(slog.String("policy", p.Name))}
}

// logged observes one execution.
type logged struct {
	ctx context.Context //nolint:containedctx // of the execution
	log *slog.Logger
}

// Retry implements [Observation].
func (l *logged) Retry(n int, delay time.Duration, err error) {
	l.log.InfoContext(l.ctx, "an attempt failed and is made again", slog.Int("retry", n), slog.Duration("after", delay),
		slog.Any("error", err))
}

// Timeout implements [Observation].
func (l *logged) Timeout(n int, limit time.Duration) {
	l.log.WarnContext(l.ctx, "an attempt has timed out", slog.Int("attempt", n), slog.Duration("limit", limit))
}

// End implements [Observation].
func (l *logged) End(o Outcome, err error) {
	if o == Failed {
		l.log.WarnContext(l.ctx, "a function failed, and is not retried any more", slog.Any("error", err))
	}
}
