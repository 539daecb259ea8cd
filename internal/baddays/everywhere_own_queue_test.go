package baddays_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/recoverability"
)

// moveToAnOwnQueue has a policy that moves failed messages to the other queue of the endpoint, and
// back.
func moveToAnOwnQueue(t *testing.T) outcome {
	onEach(t, func(d *orderDay) time.Duration {
		bad := size(5, 100)
		own := d.queue + "-a"
		d.run(func(n int) error {
			if n < bad {
				return errBadDay
			}
			return nil
		}, func(cfg *endpoint.Config) {
			cfg.Instance, cfg.InstanceQueue = "a", true
			cfg.Recoverability.Policy = func(f recoverability.Failure) recoverability.Action {
				if f.Queue == own {
					return recoverability.MoveToError{Queue: d.queue}
				}
				return recoverability.MoveToError{Queue: own}
			}
		})
		d.send(0, bad, d.queue)
		d.send(bad, 20, own)
		d.await("the good orders to be handled", func() bool { _, _, orders := d.total(); return orders == 20 })
		d.await("the bad orders to be in the error queue", func() bool { return d.failed() == bad })
		if attempts, handled, _ := d.total(); attempts != bad+20 || handled != 20 {
			d.t.Errorf("%d attempts, want one for each of %d orders", attempts, bad+20)
		}
		return 0
	})
	return outcome{"is in the configured error queue after one attempt", "are handled", 0}
}
