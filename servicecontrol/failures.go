package servicecontrol

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// failures logs the failures of one kind of report: the first one, then at most one line a minute.
type failures struct {
	log *slog.Logger

	mu       sync.Mutex // guards the rest
	loggedAt time.Time
	unlogged int  // failures since then
	reported bool // the last line was about a failure
}

// logPause is the least time between two lines about failures of one kind.
const logPause = time.Minute

// failures returns the log of the failures of a kind of report.
func (r *reporter) failures(report string, attrs ...any) *failures {
	attrs = append([]any{slog.String("endpoint", r.endpoint), slog.String("report", report)}, attrs...)
	return &failures{log: r.env.Logger.With(attrs...)}
}

// add logs a failure, or counts it.
func (f *failures) add(ctx context.Context, err error, attrs ...any) {
	if ctx.Err() != nil {
		return // the endpoint stops
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unlogged++
	if now := time.Now(); f.loggedAt.IsZero() || now.Sub(f.loggedAt) >= logPause {
		attrs = append(attrs, slog.Any("error", err), slog.Int("failures", f.unlogged))
		f.log.WarnContext(ctx, "a report to ServiceControl failed; the endpoint is not affected", attrs...)
		f.loggedAt, f.unlogged, f.reported = now, 0, true
	}
}

// ended logs that reports succeed again, if the last line was about a failure.
func (f *failures) ended(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reported {
		f.log.InfoContext(ctx, "reports to ServiceControl succeed again", slog.Int("failures", f.unlogged))
		f.unlogged, f.reported = 0, false
	}
}
