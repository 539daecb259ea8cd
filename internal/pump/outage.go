package pump

import (
	"context"
	"log/slog"
	"sync"
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

	mu       sync.Mutex // guards what follows
	pace     backoff.Backoff
	failures int
	since    time.Time
	events   []event
	busy     bool // a goroutine reports the events
}

// event is the result of one Receive. Without err, it is the end of an outage.
type event struct {
	err      error
	failures int
	lasted   time.Duration
}

func newOutage(logger *slog.Logger, notify func(error)) outage {
	if notify == nil {
		notify = func(error) {}
	}
	return outage{logger: logger, notify: notify, pace: backoff.Backoff{Min: backoffMin, Max: backoffMax}}
}

// note records the result of a Receive.
func (o *outage) note(ctx context.Context, err error) {
	if err != nil {
		o.failed(ctx, err)
	} else {
		o.worked(ctx)
	}
}

func (o *outage) failed(ctx context.Context, err error) {
	o.mu.Lock()
	if o.failures == 0 {
		o.since = time.Now()
	}
	o.failures++
	o.report(ctx, event{err: err, failures: o.failures})
}

func (o *outage) worked(ctx context.Context) {
	o.mu.Lock()
	if o.failures == 0 {
		o.mu.Unlock()
		return
	}
	end := event{failures: o.failures, lasted: time.Since(o.since)}
	o.failures = 0
	o.pace.Reset()
	o.report(ctx, end)
}

// pause returns the wait before the next attempt.
func (o *outage) pause() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pace.Next()
}

// report logs e and calls notify, in the order of the events, also when several Receive calls end at the same time.
// Called with mu held; releases it.
func (o *outage) report(ctx context.Context, e event) {
	o.events = append(o.events, e)
	if o.busy {
		o.mu.Unlock()
		return
	}
	o.busy = true
	for len(o.events) > 0 {
		e := o.events[0]
		o.events = o.events[1:]
		o.mu.Unlock()
		o.log(ctx, e)
		o.notify(e.err)
		o.mu.Lock()
	}
	o.busy = false
	o.mu.Unlock()
}

func (o *outage) log(ctx context.Context, e event) {
	switch {
	case e.err == nil:
		o.logger.LogAttrs(ctx, slog.LevelInfo, "receiving works again",
			slog.Int("failures", e.failures), slog.Duration("after", e.lasted))
	case e.failures == 1:
		o.logger.LogAttrs(ctx, slog.LevelWarn, "receiving fails, trying again",
			slog.Any("error", e.err))
	}
}
