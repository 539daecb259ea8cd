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

// topology is the way of published messages to the queues that subscribed to their types. A send
// addresses a queue by its name in any topology.
type topology interface {
	// address returns the exchange and the key that a message of these types is published with.
	address(types []string) (exchange, key string)
	// forQueue returns the exchanges of a queue. forTypes returns those for publishing the first of
	// types, that of the first before all others; the others are its base types.
	forQueue(name string) []part
	forTypes(types []string) []part
	// former returns the exchange of a type in older versions; "" if it has not changed.
	former(name string) string

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
	vhost       string
	version     version  // of the broker
	checked     sync.Map // the queues whose delivery limit was checked since the connection was opened, by name
}

// Install implements [transport.Installer]: it declares the queues of the plan, the exchanges of
// the topology, and the queues in which delayed messages wait. A queue that exists with other
// arguments is used as it is and logged. Where [Transport].DeliveryLimit is [None] and the broker
// has a limit of its own, it sets the policies that lift that.
func (c *schema) Install(ctx context.Context, plan transport.Plan) error {
	return advised(c.install(ctx, plan))
}

// advised adds what to do to an error of installing.
func advised(err error) error {
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: install as a user with the right to configure it, and run the endpoint without installing", err)
	}
	return err
}

func (c *schema) install(ctx context.Context, plan transport.Plan) error {
	if err := c.checkNames(plan); err != nil {
		return err
	}
	if err := c.installDeadLetters(ctx, plan.Queues); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := c.installQueue(ctx, q); err != nil {
			return err
		}
	}
	if err := c.liftLimits(ctx, plan.Queues); err != nil {
		return err
	}
	if plan.Delays {
		if err := c.installDelays(ctx, plan.Queues); err != nil {
			return err
		}
	}
	for _, types := range plan.Types {
		if err := c.onChannel(ctx, c.declareTypes(types)); err != nil {
			return err
		}
		if err := c.installFormer(ctx, types); err != nil {
			return err
		}
	}
	return nil
}

func (c *schema) installQueue(ctx context.Context, q transport.Queue) error {
	queue := c.queuePart(q)
	err := c.onChannel(ctx, queue.create)
	if isCode(err, amqp.PreconditionFailed) {
		err = c.useAsItIs(ctx, queue)
	}
	if err != nil {
		return err
	}
	return c.onChannel(ctx, declareAll(c.topology.forQueue(q.Name)))
}

// useAsItIs logs how a queue differs from the plan. A stream is refused: it keeps messages that are
// acknowledged.
func (c *schema) useAsItIs(ctx context.Context, queue part) error {
	findings, err := c.compare(ctx, []part{queue})
	if err != nil || len(findings) == 0 {
		return err
	}
	detail, advice := findings[0].Detail, ""
	switch {
	case strings.Contains(detail, "x-queue-type: 'stream'"):
		return fmt.Errorf("rabbitmq: declare queue %q: it is a stream, which no endpoint can receive from: "+
			"delete it, or use another name", queue.name)
	case strings.Contains(detail, "x-queue-type"):
		advice = "use the transport's QueueType for it, or delete it while it is empty"
	case c.deadLetters.wanted() && queue.received:
		advice = fmt.Sprintf("if an endpoint of NServiceBus is to receive from it too, set DeliveryLimit to None. Otherwise delete it "+
			"while it is empty, or give it a policy with delivery-limit %d, dead-letter-exchange \"\" and dead-letter-routing-key %q, "+
			"with which no endpoint of NServiceBus starts on it", c.deadLetters.limit, c.deadLetters.queue)
	case c.isBare():
		advice = "no endpoint of NServiceBus can declare it: delete it while it is empty, and create it again with Install"
	}
	c.log.WarnContext(ctx, "a queue exists with other arguments and is used as it is",
		"queue", queue.name, "differs", detail, "advice", advice)
	return nil
}

// Subscribe implements [transport.Subscriber].
func (c *schema) Subscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		if err := c.ensureTypes(ctx, []string{name}); err != nil {
			return err
		}
		err := c.onChannel(ctx, func(ch *amqp.Channel) error {
			return wrap(c.topology.subscribe(ch, queue, name), "subscribe %q to %s", queue, name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Unsubscribe implements [transport.Subscriber].
func (c *schema) Unsubscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error {
			return wrap(c.topology.unsubscribe(ch, queue, name), "unsubscribe %q from %s", queue, name)
		})
		if err != nil && !isCode(err, amqp.NotFound) {
			return err
		}
		if err := c.unsubscribeFormer(ctx, queue, name); err != nil {
			return err
		}
	}
	return nil
}

// declareTypes declares the exchanges for publishing the first of types.
func (c *schema) declareTypes(types []string) func(*amqp.Channel) error {
	if _, key := c.topology.address(types); len(key) > maxShort {
		return func(*amqp.Channel) error {
			return fmt.Errorf("rabbitmq: publish %s: its name and those of its base types take %d bytes, and %d is the most: "+
				"leave out base types, or use the conventional topology", types[0], len(key), maxShort)
		}
	}
	return declareAll(c.topology.forTypes(types))
}

// ensureTypes is declareTypes. Without the right to declare, the exchange of the first type has to
// exist.
func (c *schema) ensureTypes(ctx context.Context, types []string) error {
	refused := c.onChannel(ctx, c.declareTypes(types))
	if refused == nil {
		return unlessRefused(c.bindFormer(ctx, types))
	}
	if !isCode(refused, amqp.AccessRefused) {
		return refused
	}
	if missing := c.onChannel(ctx, c.topology.forTypes(types)[0].find); missing != nil {
		return fmt.Errorf("%w (%w): have it created by Install, by a user with the right to configure", missing, refused)
	}
	return nil
}

// ensureType declares the exchanges of types, which are published to a place, unless this sender
// has done so, or the broker has just refused to.
func (b *batch) ensureType(ctx context.Context, place route, types []string) error {
	c, s := b.conn, b.sender
	if s.hasDeclared(types) {
		return nil
	}
	types = slices.Clone(types) // declaring may outlast ctx
	return b.to.once(ctx, place, func() bool { return s.hasDeclared(types) }, func() error {
		err := c.ensureTypes(ctx, types)
		if err == nil {
			s.declared.set(types[0], types)
		}
		return err
	})
}

func (s *sender) hasDeclared(types []string) bool {
	declared, _ := s.declared.get(types[0])
	return slices.Equal(declared, types)
}
