package endpoint

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/recoverability"
)

// criticalOutage is how long receiving may fail before a notification.
const criticalOutage = 2 * time.Minute

// reception is the state of receiving from a queue. The zero value is one that works.
type reception struct {
	queue string

	mu       sync.Mutex // guards the rest
	err      error      // of the last Receive; nil while it works
	since    time.Time  // when it began to fail
	reported bool
}

// note records the error of a Receive. It reports true once in an outage, when that has lasted for
// criticalOutage.
func (r *reception) note(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		r.reported = false
	case r.err == nil:
		r.since = now
	}
	r.err = err
	if err == nil || r.reported || now.Sub(r.since) < criticalOutage {
		return false
	}
	r.reported = true
	return true
}

// failing returns why receiving fails, and since when; nil while it works.
func (r *reception) failing() (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since, r.err
}

// watch returns the function that the pump calls after each Receive that failed, and after the
// first that succeeded.
func (l *live) watch(ctx context.Context, r *reception) func(error) {
	return func(err error) {
		if r.note(err) {
			l.notifier.Critical(ctx, recoverability.Failure{
				Queue: r.queue, Now: time.Now(),
				Err: fmt.Errorf("receiving from %q has been failing for %v: %w", r.queue, criticalOutage, err),
			})
		}
	}
}
