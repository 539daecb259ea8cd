package baddays_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// limitedOutage has an outage of what the handler needs, under a rate limit: no message is lost or
// handled twice.
func limitedOutage(t *testing.T) outcome {
	normal := onEach(t, func(d *orderDay) time.Duration {
		messages, failures := size(20, 200), size(40, 400)
		var down atomic.Bool
		down.Store(true)
		d.run(func(int) error {
			if down.Load() {
				return errBadDay
			}
			return nil
		}, func(cfg *endpoint.Config) {
			cfg.Recoverability.Delayed = recoverability.None
			cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 8, Delay: 20 * time.Millisecond}
		})
		d.send(0, messages, d.queue)
		d.await("failures", func() bool { attempts, _, _ := d.total(); return attempts >= failures })
		down.Store(false)
		began := time.Now()
		d.await("all orders to be handled", func() bool { _, _, orders := d.total(); return orders == messages })
		normal := time.Since(began)
		if _, handled, _ := d.total(); handled != messages {
			d.t.Errorf("%d orders were handled %d times", messages, handled)
		}
		if n := d.failed(); n != 0 {
			d.t.Errorf("%d orders are in the error queue", n)
		}
		return normal
	})
	return outcome{"waits, and is tried one at a time", "are handled once each", normal}
}
