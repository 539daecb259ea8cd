package pump

import (
	"fmt"
	"sync"
	"time"
)

// criticalOutage is how long receives may fail before the failure is reported.
const criticalOutage = 2 * time.Minute

// Reception is the record of the receives from a queue: whether they fail, and since when. The zero
// value is a queue whose receives succeed. A Reception is safe for concurrent use.
type Reception struct {
	Queue string

	mu       sync.Mutex // guards the rest
	err      error      // of the last receive; nil if the receive succeeded
	since    time.Time  // when the receives began to fail
	reported bool
}

// Note records the error of a receive. Note returns an error to report once in an outage, when the
// outage has lasted for two minutes, and nil otherwise.
func (r *Reception) Note(err error) (outage error) {
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
		return nil
	}
	r.reported = true
	return fmt.Errorf("receiving from %q has been failing for %v: %w", r.Queue, criticalOutage, err)
}

// Failing returns why receives fail, and since when; nil while they succeed.
func (r *Reception) Failing() (since time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since, r.err
}
