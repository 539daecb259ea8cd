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

// topology is the way of published messages to the queues that subscribed to their types. A send addresses a queue by
// its name in any topology.
type topology interface {
	// address returns the exchange and the key that a message of these types is published with.
	address(types []string) (exchange, key string)
	// declare declares the exchange that all types share, if any.
	declare(ch *amqp.Channel) error
	// declareQueue declares the exchange of a queue, if any.
	declareQueue(ch *amqp.Channel, name string) error
	// removeQueue deletes it.
	removeQueue(ch *amqp.Channel, name string) error
	// declareTypes declares the exchanges for publishing the first of types; the others are its base types. findTypes
	// fails where they are missing.
	declareTypes(ch *amqp.Channel, types []string) error
	findTypes(ch *amqp.Channel, types []string) error
	// parts returns all exchanges of a plan.
	parts(plan transport.Plan) []part

	subscribe(ch *amqp.Channel, queue, name string) error
	unsubscribe(ch *amqp.Channel, queue, name string) error
}

// schema declares, compares and removes queues and exchanges.
type schema struct {
	channels

	queueType   QueueType
	topology    topology
	deadLetters deadLetters
	management  *management
}

// Install implements [transport.Installer]: it declares the queues of the plan, the exchanges of the topology, and the
// queues in which delayed messages wait. A queue that exists with other arguments is used as it is and logged.
func (c *schema) Install(ctx context.Context, plan transport.Plan) error {
	err := c.install(ctx, plan)
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: install as a user with the right to configure it, and run the endpoint without installing", err)
	}
	return err
}

func (c *schema) install(ctx context.Context, plan transport.Plan) error {
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

func (c *schema) installQueue(ctx context.Context, q transport.Queue) error {
	name := q.Name
	args := c.arguments(q)
	err := c.onChannel(ctx, part{name: name, args: args}.create)
	if isCode(err, amqp.PreconditionFailed) {
		err = c.useAsItIs(ctx, name, args)
	}
	if err != nil {
		return err
	}
	return c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.declareQueue(ch, name) })
}

// useAsItIs logs how a queue differs from the plan. A stream is refused: it keeps messages that are acknowledged.
func (c *schema) useAsItIs(ctx context.Context, name string, args amqp.Table) error {
	findings, err := c.compare(ctx, []part{{name: name, args: args}})
	if err != nil || len(findings) == 0 {
		return err
	}
	detail, advice := findings[0].Detail, c.deadLetters.advice()
	switch {
	case strings.Contains(detail, "x-queue-type: 'stream'"):
		return fmt.Errorf("rabbitmq: declare queue %q: it is a stream, which no endpoint can receive from: "+
			"delete it, or use another name", name)
	case strings.Contains(detail, "x-queue-type"):
		advice = "use the transport's QueueType for it, or delete it while it is empty"
	}
	c.log.WarnContext(ctx, "a queue exists with other arguments and is used as it is",
		"queue", name, "differs", detail, "advice", advice)
	return nil
}

// Subscribe implements [transport.Subscriber].
func (c *schema) Subscribe(ctx context.Context, queue string, types []string) error {
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

// Unsubscribe implements [transport.Subscriber].
func (c *schema) Unsubscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error { return c.topology.unsubscribe(ch, queue, name) })
		if err != nil && !isCode(err, amqp.NotFound) {
			return err
		}
	}
	return nil
}

// ensureTypes declares the exchanges for publishing the first of types, or finds them.
func (c *schema) ensureTypes(ctx context.Context, types []string) error {
	return c.ensure(ctx,
		func(ch *amqp.Channel) error { return c.topology.declareTypes(ch, types) },
		func(ch *amqp.Channel) error { return c.topology.findTypes(ch, types) })
}

// declared remembers the types that a sender has declared.
type declared struct {
	mu    sync.Mutex // guards types
	types map[string][]string
}

// ensureType declares the exchanges of types, which are published to a place, unless this sender has done so, or the
// broker has just refused to.
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
