package pump

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 10 * time.Second
)

// outage is a time in which Receive fails. It paces the attempts, and logs and reports the first failure and the end.
type outage struct {
	logger *slog.Logger
	notify func(error)
	turn   chan struct{} // full while a result is recorded: one after the other, in order; it guards the rest

	pace     backoff.Backoff
	failures int
	since    time.Time
}

func newOutage(logger *slog.Logger, notify func(error)) outage {
	pace := backoff.Backoff{Min: backoffMin, Max: backoffMax}
	return outage{logger: logger, notify: notify, turn: make(chan struct{}, 1), pace: pace}
}

// note records the result of a Receive.
func (o *outage) note(ctx context.Context, err error) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	switch {
	case err != nil:
		if o.failures++; o.failures == 1 {
			o.since = time.Now()
			o.logger.LogAttrs(ctx, slog.LevelWarn, "receiving fails, trying again", slog.Any("error", err))
		}
	case o.failures == 0:
		return
	default:
		o.logger.LogAttrs(ctx, slog.LevelInfo, "receiving works again",
			slog.Int("failures", o.failures), slog.Duration("after", time.Since(o.since)))
		o.failures = 0
		o.pace.Reset()
	}
	o.notify(err)
}

// pause returns the wait before the next attempt.
func (o *outage) pause() time.Duration {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	return o.pace.Next()
}
