package transporttest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// settling is a fault in one verb.
func settling(verb string, instead func(ctx context.Context, d *faultyDelivery) error) func(*faulty) {
	return func(f *faulty) {
		f.settle = func(ctx context.Context, v string, d *faultyDelivery, sound func(context.Context) error) error {
			if v == verb {
				return instead(ctx, d)
			}
			return sound(ctx)
		}
	}
}

func nothing(context.Context, *faultyDelivery) error { return nil }

func drop(ctx context.Context, d *faultyDelivery) error { return d.whole.Complete(ctx) }

func retryNow(ctx context.Context, d *faultyDelivery) error { return d.whole.Retry(ctx) }

var settleMutants = []mutant{
	{"settle-complete", "Complete does nothing", settling("Complete", nothing)},
	{"settle-retry", "Retry does nothing", settling("Retry", nothing)},
	{"settle-retry", "Retry drops the message", settling("Retry", drop)},
	{"settle-release", "Release drops the message", settling("Release", drop)},
	{"settle-once", "settling twice works", lenient},
	{"settle-race", "settling twice works", lenient},
	{"settle-any-order", "Complete completes all before it too", func(f *faulty) {
		f.settle = func(ctx context.Context, verb string, d *faultyDelivery, sound func(context.Context) error) error {
			if verb != "Complete" {
				return sound(ctx)
			}
			for _, older := range d.receiver.conn.unsettled() {
				if older.id() < d.id() {
					_ = older.whole.Complete(ctx) // it may be settled
				}
			}
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				err = nil
			}
			return err
		}
	}},
	{"settle-own-context", "settles use the context of Receive", func(f *faulty) {
		f.settle = func(_ context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			return sound(d.ctx)
		}
	}},
	{"settle-again", "a settle whose context had ended cannot be repeated", func(f *faulty) {
		tried := map[*faultyDelivery]bool{}
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if tried[d] {
				return errMutant
			}
			tried[d] = true
			return sound(ctx)
		}
	}},
	{"settle-again", "a settle whose context had ended drops the message", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), d.whole.Complete(context.WithoutCancel(ctx)))
			}
			return sound(ctx)
		}
	}},
	{"settle-dead-letter", "DeadLetter returns the message to its queue", settling("DeadLetter", retryNow)},
}

// lenient says that a second settle has worked.
func lenient(f *faulty) {
	f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
		err := sound(ctx)
		if errors.Is(err, transport.ErrLeaseLost) && d.isSettled() {
			return nil
		}
		return err
	}
}

// counting counts deliveries per key.
func counting(key func(d *faultyDelivery) any) func(*faulty) {
	return func(f *faulty) {
		var mu sync.Mutex
		counts := map[any]int{}
		seen := map[*faultyDelivery]int{}
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			mu.Lock()
			defer mu.Unlock()
			if seen[d] == 0 {
				counts[key(d)]++
				seen[d] = counts[key(d)]
			}
			return transport.Attempt{N: seen[d], Exact: true}
		}
	}
}

var attemptMutants = []mutant{
	{"attempts-first", "attempts are counted from 0", func(f *faulty) {
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: d.whole.Attempt().N - 1, Exact: true}
		}
	}},
	{"attempts-counted", "the count is not raised", func(f *faulty) {
		f.attempt = func(*faultyDelivery) transport.Attempt { return transport.Attempt{N: 1, Exact: true} }
	}},
	{"attempts-counted", "a guess is called exact", func(f *faulty) {
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: min(2, d.whole.Attempt().N), Exact: true}
		}
	}},
	{"attempts-shared", "attempts are counted in the connection", counting(func(d *faultyDelivery) any {
		return d.receiver.conn
	})},
	{"attempts-own", "attempts are counted for the queue", counting(func(d *faultyDelivery) any {
		return d.receiver.queue
	})},
	{"attempts-closed", "Close returns unsettled messages without counting the attempt", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			for _, d := range c.unsettled() {
				_ = d.whole.Release(context.Background()) // or Close does it
			}
			return c.sound.Close()
		}
	}},
	{"attempts-of-counted", "a delivery that is lost with its connection is not counted", func(f *faulty) {
		f.close = func(c *faultyConn) error {
			for _, d := range c.unsettled() {
				_ = d.whole.Release(context.Background()) // or Close does it
			}
			return c.sound.Close()
		}
	}},
	{"attempts-released", "Release counts although FreeRelease says no", settling("Release", retryNow)},
	{"attempts-of-copies", "attempts are counted by the message's id", counting(func(d *faultyDelivery) any {
		return d.id()
	})},
	{"attempts-of-delayed", "the end of a delay counts as a delivery", func(f *faulty) {
		f.dispatch = func(ctx context.Context, c *faultyConn, ops []transport.Operation) ([]transport.Receipt, error) {
			return c.sound.Dispatch(ctx, ops)
		}
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			return transport.Attempt{N: d.whole.Attempt().N + 1, Exact: true}
		}
	}},
}

var leaseMutants = []mutant{
	{"lease-expires", "leases are shorter than is said", func(f *faulty) {
		f.limits = func(l transport.Limits) transport.Limits { l.Lease = 2 * time.Second; return l }
	}},
	{"lease-expires", "the end of a lease does not count as an attempt", func(f *faulty) {
		f.attempt = func(*faultyDelivery) transport.Attempt { return transport.Attempt{N: 1, Exact: true} }
	}},
	{"lease-renewed", "Renew does nothing", func(f *faulty) {
		f.renew = func(_ context.Context, _ *faultyReceiver, ds []transport.Delivery) []error {
			return make([]error, len(ds))
		}
	}},
	{"lease-lost-settle", "a stale settle is accepted", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, _ *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				return nil
			}
			return err
		}
	}},
	{"lease-lost-settle", "a stale settle affects the newer delivery", func(f *faulty) {
		f.settle = func(ctx context.Context, _ string, d *faultyDelivery, sound func(context.Context) error) error {
			err := sound(ctx)
			if errors.Is(err, transport.ErrLeaseLost) {
				for _, newer := range d.receiver.conn.unsettled() {
					_ = newer.whole.Complete(ctx) // of which one works
				}
			}
			return err
		}
	}},
	{"lease-lost-sends-nothing", "CompleteWith sends before it looks at the lease", sendsFirst},
	{"lease-lost-at-once", "CompleteWith sends before it looks at the lease", sendsFirst},
	{"lease-lost-commits-nothing", "a transaction sends before it looks at the lease", func(f *faulty) {
		f.commit = func(ctx context.Context, tx *faultyTx, ops []transport.Operation) error {
			_, err := tx.d.receiver.conn.sound.Dispatch(ctx, ops)
			return errors.Join(err, tx.Tx.Complete(ctx, nil))
		}
	}},
	{"lease-renew-tells", "one lost lease fails those renewed with it", func(f *faulty) {
		f.renew = func(ctx context.Context, r *faultyReceiver, ds []transport.Delivery) []error {
			errs := r.renewSoundly(ctx, ds)
			for i := range errs {
				errs[i] = errors.Join(errs...)
			}
			return errs
		}
	}},
	{"lease-renew-settled", "a renewal leases what is no longer ours", func(f *faulty) {
		f.renew = func(ctx context.Context, r *faultyReceiver, ds []transport.Delivery) []error {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, _ = r.soundly(short, 1) // which is never settled
			return make([]error, len(ds))
		}
	}},
}

func sendsFirst(f *faulty) {
	f.completeWith = func(ctx context.Context, d *faultyDelivery, ops []transport.Operation) error {
		if _, err := d.receiver.conn.sound.Dispatch(ctx, ops); err != nil {
			return err
		}
		return d.whole.Complete(ctx)
	}
}
