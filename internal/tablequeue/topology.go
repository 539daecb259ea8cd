package tablequeue

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// Install implements [transport.Installer].
func (c *Conn) Install(ctx context.Context, plan transport.Plan) error {
	defer c.unusable.found()
	plan = c.shortPlan(plan)
	return c.call(ctx, names(plan), func(ctx context.Context) error { return c.store.Install(ctx, plan) })
}

// Inspect implements [transport.Inspector].
func (c *Conn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	queues = c.shortNames(queues)
	return ask(ctx, c, queues, func(ctx context.Context) (all []transport.QueueStats, err error) {
		listed := len(queues) == 0
		if listed {
			if queues, err = c.store.List(ctx); err != nil {
				return nil, err
			}
		}
		for _, q := range queues {
			stats, err := c.store.Inspect(ctx, q)
			switch {
			case listed && errors.Is(err, transport.ErrNoQueue): // removed since
			case err != nil:
				return nil, err
			default:
				all = append(all, stats)
			}
		}
		return all, nil
	})
}

// Subscribe implements [transport.Subscriber]. This Conn publishes to the new subscriber at once,
// and others when they are notified, or after a second.
func (c *Conn) Subscribe(ctx context.Context, queue string, types []string) error {
	defer c.unusable.found()
	queue = c.ShortName(queue)
	return c.subscribe(ctx, func(ctx context.Context) error { return c.store.Subscribe(ctx, queue, types) }, queue)
}

// Unsubscribe implements [transport.Subscriber]. Messages that other processes publish may arrive
// for a second more.
func (c *Conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	queue = c.ShortName(queue)
	return c.subscribe(ctx, func(ctx context.Context) error { return c.store.Unsubscribe(ctx, queue, types) }, queue)
}

// Remove implements [transport.Remover]: a queue is deleted with its subscriptions and its queue of
// forwards.
func (c *Conn) Remove(ctx context.Context, queues ...string) error {
	queues = c.shortNames(queues)
	return c.subscribe(ctx, func(ctx context.Context) error {
		forwards, err := c.forwardsOf(ctx, queues)
		if err != nil {
			return err
		}
		return c.store.Remove(ctx, append(forwards, queues...))
	}, queues...)
}

// subscribe changes the subscriptions of queues, and has other processes notified.
func (c *Conn) subscribe(ctx context.Context, change func(context.Context) error, queues ...string) error {
	defer c.subs.forget()
	err := c.call(ctx, queues, change)
	if err == nil {
		c.wakes.announce(subscriptionsChanged)
	}
	return err
}

// subscriptions reads the subscriptions for a publish. When it fails, no message of the publish was
// sent.
func (c *Conn) subscriptions(ctx context.Context) ([]Subscription, error) {
	all, err := ask(ctx, c, nil, func(ctx context.Context) ([]Subscription, error) {
		all, err := c.store.Subscriptions(ctx)
		if err != nil {
			return nil, err
		}
		return c.reachable(ctx, all)
	})
	if err != nil {
		return nil, c.unreachable(err)
	}
	return all, nil
}

// unreachable returns err, of a call that has written no message, with [transport.ErrUnreachable]
// where the call may succeed later.
func (c *Conn) unreachable(err error) error {
	switch c.store.Classify(err) {
	case Unavailable, Impeded, Unknown, Locked:
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	case Failed, Refused, Conflict:
	}
	return err
}
