package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// topology is how published messages get to the queues that subscribed to their types. What is sent goes to
// a queue by its name in any of them.
type topology interface {
	// address is where a message of these types is published.
	address(types []string) (exchange, key string)
	// declare declares what all types share.
	declare(ch *amqp.Channel) error
	// declareQueue declares what a queue needs beside itself.
	declareQueue(ch *amqp.Channel, name string) error
	// removeQueue deletes it.
	removeQueue(ch *amqp.Channel, name string) error
	// declareTypes declares what publishing the first of types needs, the others being its base types, and
	// findTypes fails where that is missing.
	declareTypes(ch *amqp.Channel, types []string) error
	findTypes(ch *amqp.Channel, types []string) error
	// parts are all the exchanges of a plan.
	parts(plan transport.Plan) []part

	subscribe(ch *amqp.Channel, queue, name string) error
	unsubscribe(ch *amqp.Channel, queue, name string) error
}

// Install declares the queues of the plan, what the topology needs, and where delayed messages wait. What
// exists with other arguments is left alone and logged.
func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	err := c.install(ctx, plan)
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: install as a user with the right to configure it, and run the endpoint without installing", err)
	}
	return err
}

func (c *conn) install(ctx context.Context, plan transport.Plan) error {
	if err := c.installDeadLetters(ctx, plan.Queues); err != nil {
		return err
	}
	if len(plan.Queues) > 0 {
		if err := c.onChannel(ctx, c.topology.declare); err != nil {
			return err
		}
	}
	for _, q := range plan.Queues {
		if err := c.installQueue(ctx, q); err != nil {
			return err
		}
	}
	if plan.Delays {
		if err := c.installDelays(ctx, plan.Queues); err != nil {
			return err
		}
	}
	for _, types := range plan.Types {
		if err := c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.declareTypes(ch, types) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) installQueue(ctx context.Context, q transport.Queue) error {
	name := q.Name
	args := c.arguments(q)
	err := c.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return wrap(err, "declare queue %q", name)
	})
	if isCode(err, amqp.PreconditionFailed) {
		err = c.useAsItIs(ctx, name, args)
	}
	if err != nil {
		return err
	}
	return c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.declareQueue(ch, name) })
}

// useAsItIs tells how a queue differs from what it should be. A stream is no queue: it keeps what is acknowledged.
func (c *conn) useAsItIs(ctx context.Context, name string, args amqp.Table) error {
	findings, err := c.compare(ctx, []part{{name: name, args: args}})
	if err != nil || len(findings) == 0 {
		return err
	}
	detail, advice := findings[0].Detail, c.deadLetters.advice()
	switch {
	case strings.Contains(detail, "x-queue-type: 'stream'"):
		return fmt.Errorf("rabbitmq: declare queue %q: it is a stream, which no endpoint can receive from: delete it, or use another name", name)
	case strings.Contains(detail, "x-queue-type"):
		advice = "use the transport's QueueType for it, or delete it while it is empty"
	}
	c.log.WarnContext(ctx, "a queue exists with other arguments and is used as it is", "queue", name, "differs", detail, "advice", advice)
	return nil
}

// Subscribe makes what is published under the types arrive in the queue.
func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		if err := c.ensureTypes(ctx, []string{name}); err != nil {
			return err
		}
		if err := c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.subscribe(ch, queue, name) }); err != nil {
			return err
		}
	}
	return nil
}

// Unsubscribe ends that.
func (c *conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.unsubscribe(ch, queue, name) })
		if err != nil && !isCode(err, amqp.NotFound) {
			return err
		}
	}
	return nil
}

// ensureTypes makes ready what publishing the first of types needs.
func (c *conn) ensureTypes(ctx context.Context, types []string) error {
	return c.ensure(ctx,
		func(ch *amqp.Channel) error { return c.topology.declareTypes(ch, types) },
		func(ch *amqp.Channel) error { return c.topology.findTypes(ch, types) })
}

// declared remembers the types that a sender has declared.
type declared struct {
	mu    sync.Mutex // guards types
	types map[string][]string
}

// ensureType declares the exchanges of types, which are published to a place, unless this sender has done so, or the broker
// has just refused to.
func (b *batch) ensureType(ctx context.Context, place route, types []string) error {
	d, p, c := &b.sender.declared, b.to, b.conn
	if d.knows(types) {
		return nil
	}
	if err := p.refusals.of(place); err != nil {
		return err
	}
	types = slices.Clone(types) // declaring may outlast ctx
	return p.inTurn(ctx, func() error {
		if d.knows(types) {
			return nil
		}
		if err := p.refusals.of(place); err != nil {
			return err
		}
		if err := c.ensureTypes(ctx, types); err != nil {
			p.refusals.add(place, err)
			return err
		}
		d.add(types)
		return nil
	})
}

func (d *declared) knows(types []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Equal(d.types[types[0]], types)
}

func (d *declared) add(types []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.types == nil {
		d.types = make(map[string][]string)
	}
	d.types[types[0]] = types
}
