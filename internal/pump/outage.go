package pump

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 10 * time.Second
)

// outage is a time in which Receive fails. It paces the attempts, and logs and reports the first
// failure and the end.
type outage struct {
	logger *slog.Logger
	notify func(error)
	turn   chan struct{} // full while a result is recorded: one after the other, in order; it guards the rest

	pace     backoff.Backoff
	failures int
	since    time.Time
	longest  time.Duration // the duration of a failed Receive, at most
}

const (
	// listenEvery is how often a driver is asked whether the broker answers, during a Receive that
	// follows a failed one.
	listenEvery = time.Second
	// silence is how long such a Receive waits at least, if the driver cannot tell, before it
	// counts as a success.
	silence = 15 * time.Second
	// longFailure bounds what counts of the duration of a failed Receive. The first of an outage
	// may have waited for a message for hours before the outage began.
	longFailure = time.Minute
)

func newOutage(logger *slog.Logger, notify func(error)) outage {
	pace := backoff.Backoff{Min: backoffMin, Max: backoffMax}
	return outage{logger: logger, notify: notify, turn: make(chan struct{}, 1), pace: pace}
}

// note records the result of a Receive, and its duration.
func (o *outage) note(ctx context.Context, err error, took time.Duration) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	switch {
	case err != nil:
		o.longest = max(o.longest, took)
		if o.failures++; o.failures == 1 {
			o.since = time.Now()
			o.logger.LogAttrs(ctx, slog.LevelWarn, "receiving fails, trying again", slog.Any("error", err))
		}
	case o.failures == 0:
		return
	default:
		o.logger.LogAttrs(ctx, slog.LevelInfo, "receiving works again",
			slog.Int("failures", o.failures), slog.Duration("after", time.Since(o.since)))
		o.failures, o.longest = 0, 0
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

// failing reports whether the last Receive failed, and returns how long a failed Receive of this
// outage took at most.
func (o *outage) failing() (longest time.Duration, is bool) {
	o.turn <- struct{}{}
	defer func() { <-o.turn }()
	return o.longest, o.failures > 0
}

// Listen calls back once if the broker answers while a Receive of r waits for a message. That
// Receive follows failed ones, of which longest is the longest. A driver that cannot tell has
// waited for twice as long. The caller calls stop when Receive has returned, and back is not called
// after stop.
func Listen(ctx context.Context, r transport.Receiver, longest time.Duration, back func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended, began := make(chan struct{}), time.Now()
	l, knows := r.(transport.Listener)
	go func() {
		defer close(ended)
		for backoff.Sleep(ctx, listenEvery) == nil {
			if knows && l.Listening() || !knows && time.Since(began) > max(2*min(longest, longFailure), silence) {
				back()
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
