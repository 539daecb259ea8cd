package tablequeue

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [transport.Installer].
func (c *Conn) Install(ctx context.Context, plan transport.Plan) error {
	if err := c.checkAll(names(plan)); err != nil {
		return err
	}
	defer c.unusable.found()
	return c.call(ctx, func(ctx context.Context) error { return c.store.Install(ctx, plan) })
}

// Inspect implements [transport.Inspector].
func (c *Conn) Inspect(ctx context.Context, queues ...string) (stats []transport.QueueStats, err error) {
	if err := c.checkAll(queues); err != nil {
		return nil, err
	}
	err = c.call(ctx, func(ctx context.Context) error {
		stats, err = c.store.Inspect(ctx, queues...)
		return err
	})
	return stats, err
}

// Subscribe implements [transport.Subscriber]. This Conn publishes to the new subscriber at once, and others when
// they are notified, or after a second.
func (c *Conn) Subscribe(ctx context.Context, queue string, types []string) error {
	defer c.subs.forget()
	defer c.unusable.found()
	return c.subscribe(ctx, queue, func(ctx context.Context) error { return c.store.Subscribe(ctx, queue, types) })
}

// Unsubscribe implements [transport.Subscriber]. Messages that other processes publish may arrive for a second more.
func (c *Conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	defer c.subs.forget()
	return c.subscribe(ctx, queue, func(ctx context.Context) error { return c.store.Unsubscribe(ctx, queue, types) })
}

func (c *Conn) subscribe(ctx context.Context, queue string, change func(context.Context) error) error {
	if err := c.store.Check(queue); err != nil {
		return err
	}
	err := c.call(ctx, change)
	if err == nil {
		c.wakes.announce(subscriptionsChanged)
	}
	return err
}

// subscriptions reads the subscriptions for a publish. When it fails, no message of the publish was sent.
func (c *Conn) subscriptions(ctx context.Context) (all []Subscription, err error) {
	err = c.call(ctx, func(ctx context.Context) error {
		if all, err = c.store.Subscriptions(ctx); err == nil {
			all, err = c.reachable(ctx, all)
		}
		return err
	})
	if err == nil {
		return all, nil
	}
	if class := c.store.Classify(err); class == Unavailable || class == Unknown || class == Locked {
		err = fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	return nil, err
}

// call runs fn unless the Conn is closed. Close waits for it, and cancels it after a while: without an end of ctx it
// could wait for a silent server for ever.
func (c *Conn) call(ctx context.Context, fn func(context.Context) error) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.work, cancel)()
	return fn(ctx)
}
