package endpoint

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// inboxTimeout bounds the inspection of an inbox, which may have many rows.
	inboxTimeout = time.Minute
	// bytesPerID is the size of a recorded id with its indexes on PostgreSQL, to which an inbox
	// grows.
	bytesPerID = 125
)

// reportStart logs the size of the inbox, and a leftover outbox, beside the start of the endpoint.
// The result waits for that.
func (l *live) reportStart(ctx context.Context) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, inboxTimeout)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		l.reportInbox(ctx)
		l.reportLeftover(ctx)
	})
	return func() {
		cancel()
		reporting.Wait()
	}
}

// reportInbox logs what the inbox has, and what it will have at the rate of the last hour.
func (l *live) reportInbox(ctx context.Context) {
	if l.inbox == nil {
		return
	}
	inspector, ok := l.inbox.store.(transport.InboxInspector)
	if !ok {
		return
	}
	stats, err := inspector.InspectInbox(ctx, l.inbox.name)
	if err != nil {
		if ctx.Err() == nil {
			l.e.cfg.Logger.WarnContext(ctx, "the inbox cannot be inspected", slog.String("inbox", l.inbox.name), slog.Any("error", err))
		}
		return
	}
	l.e.cfg.Logger.InfoContext(ctx, "ids of handled messages are kept, to recognize a message that comes again",
		slog.String("inbox", l.inbox.name), slog.Duration("remember", l.e.cfg.Remember),
		slog.Int64("ids", stats.Rows), slog.Int64("bytes", stats.Bytes),
		slog.Int64("last_hour", stats.LastHour), slog.Int64("expected_bytes", expectedBytes(stats.LastHour, l.e.cfg.Remember)))
}

// expectedBytes returns the size to which an inbox grows that gets as many ids each hour.
func expectedBytes(hourly int64, remember time.Duration) int64 {
	return int64(float64(hourly) * remember.Hours() * bytesPerID)
}

// reportLeftover warns of messages in an outbox that the endpoint no longer has, and has no timers
// in: nothing sends them.
func (l *live) reportLeftover(ctx context.Context) {
	inspector, ok := l.conn.(transport.Inspector)
	if _, stores := l.conn.(transport.OutboxStore); !ok || !stores || l.timers != nil { // whose relay sends what is in the queue
		return
	}
	name := l.e.cfg.Name + outboxSuffix
	stats, err := inspector.Inspect(ctx, name)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
	case err != nil:
		l.e.cfg.Logger.DebugContext(ctx, "an earlier outbox could not be looked for", slog.Any("error", err))
	case len(stats) == 1 && stats[0].Ready+max(0, stats[0].Unsettled)+max(0, stats[0].Delayed) > 0:
		l.e.cfg.Logger.WarnContext(ctx, "messages wait in the outbox of this endpoint, which has none now: nothing sends them. "+
			"Send them by holdfast outbox drain, or set Config.Outbox",
			slog.String("outbox", name), slog.Int64("messages", stats[0].Ready))
	}
}
