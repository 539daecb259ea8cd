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

// outage is a time in which Receive fails. It paces the attempts and tells of the
// first failure and of the end of it.
type outage struct {
	logger *slog.Logger
	notify func(error)

	mu       sync.Mutex // guards what follows
	pace     backoff.Backoff
	failures int
	since    time.Time
	news     []event
	telling  bool // somebody is telling the news
}

// event is what there is to tell of one Receive. Without err, it is the end of an outage.
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

// note takes in how a Receive ended.
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
	o.tell(ctx, event{err: err, failures: o.failures})
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
	o.tell(ctx, end)
}

// pause is how long to wait before the next attempt.
func (o *outage) pause() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pace.Next()
}

// tell passes e on after everything that happened before it, also when several
// Receive calls end at the same time. Called with mu held; releases it.
func (o *outage) tell(ctx context.Context, e event) {
	o.news = append(o.news, e)
	if o.telling {
		o.mu.Unlock()
		return
	}
	o.telling = true
	for len(o.news) > 0 {
		e := o.news[0]
		o.news = o.news[1:]
		o.mu.Unlock()
		o.log(ctx, e)
		o.notify(e.err)
		o.mu.Lock()
	}
	o.telling = false
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
