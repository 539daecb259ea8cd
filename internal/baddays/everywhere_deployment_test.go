package baddays_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// badDeployment has a handler that fails with every message, under a rate limit that takes this for
// an outage. The messages reach the error queue all the same, and the next deployment handles what
// comes.
func badDeployment(t *testing.T) outcome {
	normal := onEach(t, func(d *orderDay) time.Duration {
		messages := size(5, 30)
		var bad atomic.Bool
		bad.Store(true)
		d.run(func(int) error {
			if bad.Load() {
				return errBadDay
			}
			return nil
		}, func(cfg *endpoint.Config) {
			cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = 1, recoverability.None
			cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 3, Delay: 5 * time.Millisecond}
		})
		d.send(0, messages, d.queue)
		d.await("all orders to be in the error queue", func() bool { return d.failed() == messages })
		d.mu.Lock()
		for n, attempts := range d.attempts {
			if attempts < 2 || attempts > 20 { // ten failures use up one of two attempts
				d.t.Errorf("order %d was attempted %d times, want 2 to 20", n, attempts)
			}
		}
		d.mu.Unlock()
		bad.Store(false)
		began := time.Now()
		d.send(messages, 10, d.queue)
		d.await("the next orders to be handled", func() bool { _, _, orders := d.total(); return orders == 10 })
		normal := time.Since(began)
		if h := d.endpoint.Health(); !h.Ready {
			d.t.Errorf("afterwards: %v", h.Reasons)
		}
		return normal
	})
	return outcome{"is in the error queue after its attempts, ten failures for each", "are handled once one succeeds", normal}
}
