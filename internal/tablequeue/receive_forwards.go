package tablequeue

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Satellites = (*Conn)(nil)
	_ transport.Relayer    = (*delivery)(nil)
)

// forwardsEvery is the time between two looks for the queue of forwards, which another instance may
// create. The instance that creates it receives from it at once.
const forwardsEvery = time.Minute

// Satellites implements [transport.Satellites]: the queue of forwards, which is created with its
// first message.
func (c *Conn) Satellites(context.Context) ([]transport.Satellite, error) {
	if _, ok := c.store.(Foreign); !ok || c.store.Check(c.forwards.queue) != nil {
		return nil, nil
	}
	if _, receives := c.queues.Load(c.cfg.Env.Endpoint); !receives {
		return nil, nil
	}
	return []transport.Satellite{{
		Queue: c.forwards.queue, Wait: c.awaitForwards, Concurrency: forwarders, Handle: noDestination,
	}}, nil
}

// awaitForwards waits until the queue of forwards exists.
func (c *Conn) awaitForwards(ctx context.Context) error {
	for found := (<-chan struct{})(c.forwards.found); ; {
		missing, err := ask(ctx, c, nil, func(ctx context.Context) ([]bool, error) {
			return c.store.Missing(ctx, []string{c.forwards.queue})
		})
		if err == nil && !missing[0] {
			return nil
		}
		again := time.NewTimer(forwardsEvery)
		select {
		case <-found:
			found = nil
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// noDestination is the handler of a message in the queue of forwards that [delivery.Relay] does not
// forward.
func noDestination(context.Context, *transport.Message) ([]transport.Operation, error) {
	return nil, &transport.DeadLetteredError{Reason: "it has no header " + header.ForwardDestination}
}

// forward takes the header with the destination off a message, and notes the destination unless
// that is the queue that it was received from.
func (d *delivery) forward() {
	to, found := d.msg.Headers.Lookup(header.ForwardDestination)
	if !found {
		return
	}
	d.msg.Headers.Del(header.ForwardDestination)
	if d.conn.ShortName(to) != d.queue {
		d.destination = new(to)
	}
}

// Relay implements [transport.Relayer].
func (d *delivery) Relay() []transport.Operation {
	if d.destination == nil {
		return nil
	}
	return []transport.Operation{{Message: &d.msg, Queue: *d.destination}}
}
