package transporttest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

func (d *faultyDelivery) Defer(ctx context.Context, after time.Duration) (handle string, err error) {
	err = d.settle(ctx, "Defer", func(ctx context.Context) error {
		if d.receiver.f.deferFor != nil {
			handle, err = d.receiver.f.deferFor(ctx, d, after)
		} else {
			handle, err = d.whole.Defer(ctx, after)
		}
		return err
	})
	return handle, err
}

func (c *faultyConn) Hasten(ctx context.Context, queue string, handles []string) error {
	if c.f.hasten != nil {
		return c.f.hasten(ctx, c, queue, handles)
	}
	return c.sound.Hasten(ctx, queue, handles)
}

var deferMutants = []mutant{
	{"defer-due", "Defer returns the message at once", func(f *faulty) {
		f.deferFor = func(ctx context.Context, d *faultyDelivery, _ time.Duration) (string, error) {
			return "", d.whole.Release(ctx)
		}
	}},
	{"defer-due", "Defer counts as an attempt", func(f *faulty) {
		f.attempt = func(d *faultyDelivery) transport.Attempt {
			a := d.whole.Attempt()
			a.N++
			return a
		}
	}},
	{"defer-due", "Defer drops the message", func(f *faulty) {
		f.deferFor = func(ctx context.Context, d *faultyDelivery, _ time.Duration) (string, error) {
			return "", d.whole.Complete(ctx)
		}
	}},
	{"defer-hasten", "Hasten does nothing", func(f *faulty) {
		f.hasten = func(context.Context, *faultyConn, string, []string) error { return nil }
	}},
	{"defer-hasten", "Hasten of an unknown handle is an error", func(f *faulty) {
		called := map[string]bool{}
		f.hasten = func(ctx context.Context, c *faultyConn, queue string, handles []string) error {
			for _, handle := range handles {
				if called[handle] {
					return errMutant
				}
				called[handle] = true
			}
			return c.sound.Hasten(ctx, queue, handles)
		}
	}},
	{"defer-hasten", "Hasten has all deferred messages delivered", func(f *faulty) {
		var all []string
		f.deferFor = func(ctx context.Context, d *faultyDelivery, after time.Duration) (string, error) {
			handle, err := d.whole.Defer(ctx, after)
			all = append(all, handle)
			return handle, err
		}
		f.hasten = func(ctx context.Context, c *faultyConn, queue string, _ []string) error {
			return c.sound.Hasten(ctx, queue, all)
		}
	}},
}
