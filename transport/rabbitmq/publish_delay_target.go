package rabbitmq

import (
	"cmp"
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// delayDeliveries is the exchange behind the relays.
	delayDeliveries = "holdfast.delay-deliveries"
	// delayRelay is what the names of relays begin with.
	delayRelay = "holdfast.delay-to."
)

// delayTarget is a destination of delayed messages.
type delayTarget struct {
	destination string
	types       []string // of a publish; nil for a queue
	// bind binds the destination to an exchange by a key.
	bind func(ch *amqp.Channel, key, exchange string) error
}

func (t delayTarget) relay() string   { return delayRelay + t.destination }
func (t delayTarget) relayed() string { return relayedDestination + t.destination }

// relayPart returns the relay: a queue for one destination in which delayed messages that are due
// expire at once. A full queue refuses them, and RabbitMQ tries at most 32 messages of a queue at a
// time (at-least-once dead-lettering). So messages that one destination refuses wait in its relay,
// and not in the levels, which all destinations share.
func (t delayTarget) relayPart() part {
	return part{
		name: t.relay(), args: expiring(0, delayDeliveries),
		bind: bindQueue(t.relay(), delays.Arrives(t.relayed()), delayArrivals),
	}
}

// declareRelay creates the relay of a destination, which has to exist. It begins at the
// destination, so that each message on the way finds the next part.
func (t delayTarget) declareRelay(ch *amqp.Channel) error {
	if err := t.bind(ch, delays.Arrives(t.relayed()), delayDeliveries); err != nil {
		return err
	}
	return t.relayPart().declare(ch)
}

// bindDirectly binds a destination without a relay, for messages of senders of older versions.
func (t delayTarget) bindDirectly(ch *amqp.Channel) error {
	return t.bind(ch, delays.Arrives(t.destination), delayArrivals)
}

func queueTarget(queue string) delayTarget {
	return delayTarget{queueDestination + queue, nil, func(ch *amqp.Channel, key, exchange string) error {
		return bindQueue(queue, key, exchange)(ch)
	}}
}

func (c *schema) typeTarget(types []string) delayTarget {
	to, typesKey := c.topology.address(types)
	return delayTarget{typeDestination + cmp.Or(typesKey, to), types, func(ch *amqp.Channel, key, exchange string) error {
		if err := c.declareTypes(types)(ch); err != nil {
			return err
		}
		return wrap(ch.ExchangeBind(to, key, exchange, false, nil), "bind %s to delayed messages", types[0])
	}}
}

// ladderReady stands for the ladder itself among the destinations.
const ladderReady = ""

// bindDelay binds a destination once for each sender, and returns the destination for the keys of
// delayed messages.
func (b *batch) bindDelay(ctx context.Context, to delayTarget) (in string, err error) {
	c, bound := b.conn, &b.sender.bound
	in, ok := bound.get(to.destination)
	if ok {
		return in, nil
	}
	err = b.to.inTurn(ctx, func() (err error) {
		if !bound.has(ladderReady) {
			if err := c.ensureDelays(ctx); err != nil {
				return err
			}
			bound.set(ladderReady, "")
		}
		if in, ok = bound.get(to.destination); ok {
			return nil
		}
		if in, err = c.bindDelay(ctx, to); err == nil {
			bound.set(to.destination, in)
		}
		return err
	})
	return in, err
}

// bindDelay creates the relay of a destination. Without the right to, it uses the relay that the
// owner's Install has created. Where there is none, messages reach the destination without one, as
// those of older versions do: a full queue then delays the messages for others.
func (c *schema) bindDelay(ctx context.Context, to delayTarget) (in string, err error) {
	refused := c.onChannel(ctx, to.declareRelay)
	if refused == nil {
		return to.relayed(), unlessRefused(c.bindFormer(ctx, to.types))
	}
	if !isCode(refused, amqp.AccessRefused) {
		return to.relayed(), refused
	}
	_, err = c.lookAt(ctx, to.relay())
	if err == nil || !isCode(err, amqp.NotFound) {
		return to.relayed(), err
	}
	c.log.WarnContext(ctx, "no right to create the relay of a destination of delayed messages: while that is full, it "+
		"holds up all delays of the virtual host; have it created by Install, by a user with the right to configure it",
		"relay", to.relay(), "err", refused)
	err = c.onChannel(ctx, to.bindDirectly)
	if isCode(err, amqp.AccessRefused) {
		c.log.WarnContext(ctx, "no right to bind a queue to delayed messages: its owner has to; until then they are moved to "+
			LostQueue, "destination", to.destination, "err", err)
		err = nil
	}
	return to.destination, err
}

// ensureDelays creates the ladder unless the last part of it exists.
func (c *schema) ensureDelays(ctx context.Context) error {
	parts := delayParts()
	err := c.ask(ctx, parts[len(parts)-1].find)
	if !isCode(err, amqp.NotFound) {
		return err
	}
	err = c.onChannel(ctx, declareAll(parts))
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: have a user with the right to configure %q create what delays need, by Install", err, "holdfast.delay-*")
	}
	return err
}

// installDelays creates the ladder, and relays for the queues of the endpoint, so that senders need
// no right to create them. Messages of senders of older versions arrive too.
func (c *schema) installDelays(ctx context.Context, queues []transport.Queue) error {
	if err := c.ensureDelays(ctx); err != nil {
		return err
	}
	return c.onChannel(ctx, func(ch *amqp.Channel) error {
		for _, q := range queues {
			if q.Shared { // Install adds nothing to it
				continue
			}
			to := queueTarget(q.Name)
			if err := to.declareRelay(ch); err != nil {
				return err
			}
			if err := to.bindDirectly(ch); err != nil {
				return err
			}
		}
		return nil
	})
}
