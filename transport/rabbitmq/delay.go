package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/transport"
)

// delays is the ladder of queues in which delayed messages wait: up to 8.5 years in steps of a second.
// All endpoints of a virtual host share it.
var delays = delayeddelivery.Ladder{Levels: 28, Step: time.Second}

const (
	// delayArrivals is the exchange at the bottom of the ladder.
	delayArrivals = "holdfast.delay-arrivals"
	// delayLost is where messages go whose destination is gone. Without it one of them would keep
	// the broker busy for ever, and those behind it waiting (RabbitMQ's at-least-once dead-lettering).
	delayLost = "holdfast.delay-lost"
	// delayNobody is a queue that each delayed publish goes to beside its subscribers, where it expires at once:
	// one to nobody would keep the broker busy for ever too, and nothing is lost by it.
	delayNobody = "holdfast.delay-nobody"
	// expiresAt is the header that bounds the life of a delayed message, in microseconds since 1970: with the
	// broker's own expiration it would leave the ladder early.
	expiresAt = "Holdfast.Delay.ExpiresAt"
	// delayedBy is the header of NServiceBus's delays, of the way here only.
	delayedBy = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
)

func delayLevel(level int) string { return fmt.Sprintf("holdfast.delay-level-%02d", level) }

// Destinations of the two kinds cannot be mistaken for each other.
const (
	queueDestination = "queue."
	typeDestination  = "type."
)

func toQueue(name string) string { return queueDestination + name }

func (c *conn) toSubscribers(types []string) string {
	exchange, key := c.topology.address(types)
	return typeDestination + cmp.Or(key, exchange)
}

// declareDelays creates the ladder. What exists is left alone.
func declareDelays(ch *amqp.Channel) error {
	lost := amqp.Table{"x-queue-type": string(Quorum)}
	if err := ch.ExchangeDeclare(delayLost, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return wrap(err, "declare exchange %q", delayLost)
	}
	if _, err := ch.QueueDeclare(delayLost, true, false, false, false, lost); err != nil {
		return wrap(err, "declare queue %q", delayLost)
	}
	if err := ch.QueueBind(delayLost, "", delayLost, false, nil); err != nil {
		return wrap(err, "bind queue %q", delayLost)
	}
	arrivals := amqp.Table{"alternate-exchange": delayLost}
	if err := ch.ExchangeDeclare(delayArrivals, amqp.ExchangeTopic, true, false, false, false, arrivals); err != nil {
		return wrap(err, "declare exchange %q", delayArrivals)
	}
	below := delayArrivals
	for level := range delays.Levels {
		if err := declareDelayLevel(ch, level, below); err != nil {
			return err
		}
		below = delayLevel(level)
	}
	return declareDelayNobody(ch)
}

func declareDelayNobody(ch *amqp.Channel) error {
	if _, err := ch.QueueDeclare(delayNobody, true, false, false, false, nobodyArguments); err != nil {
		return wrap(err, "declare queue %q", delayNobody)
	}
	published := delays.Arrives(typeDestination) + "#"
	return wrap(ch.QueueBind(delayNobody, published, delayArrivals, false, nil), "bind queue %q", delayNobody)
}

var nobodyArguments = amqp.Table{"x-queue-type": string(Quorum), "x-message-ttl": 0}

// declareDelayLevel creates the exchange and the queue of a level, which falls to the exchange below.
func declareDelayLevel(ch *amqp.Channel, level int, below string) error {
	name := delayLevel(level)
	if err := ch.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return wrap(err, "declare exchange %q", name)
	}
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
		"x-queue-type":           string(Quorum),
		"x-message-ttl":          delays.Wait(level).Milliseconds(),
		"x-dead-letter-exchange": below,
		"x-dead-letter-strategy": "at-least-once",
		"x-overflow":             "reject-publish",
	})
	if err != nil {
		return wrap(err, "declare queue %q", name)
	}
	if err := ch.QueueBind(name, delays.Waits(level), name, false, nil); err != nil {
		return wrap(err, "bind queue %q", name)
	}
	return wrap(ch.ExchangeBind(below, delays.Passes(level), name, false, nil), "bind exchange %q to %q", below, name)
}

// bindArrivals has delayed messages for a queue reach it.
func bindArrivals(ch *amqp.Channel, queue string) error {
	err := ch.QueueBind(queue, delays.Arrives(toQueue(queue)), delayArrivals, false, nil)
	return wrap(err, "bind queue %q to delayed messages", queue)
}

// bindPublished has delayed messages of a type reach its subscribers.
func (c *conn) bindPublished(ch *amqp.Channel, types []string) error {
	if err := c.topology.declareTypes(ch, types); err != nil {
		return err
	}
	exchange, _ := c.topology.address(types)
	err := ch.ExchangeBind(exchange, delays.Arrives(c.toSubscribers(types)), delayArrivals, false, nil)
	return wrap(err, "bind %s to delayed messages", types[0])
}

// delayed is where an operation goes that is due after d.
func (b *batch) delayed(ctx context.Context, op *transport.Operation, d time.Duration) (exchange, key string, err error) {
	steps, ok := delays.Steps(d)
	if !ok {
		return "", "", fmt.Errorf("rabbitmq: a delay of %v is over the longest, %v", d, delays.Max())
	}
	conn, queue := b.conn, op.Queue // bind may outlast the rest
	bind, destination := func(ch *amqp.Channel) error { return bindArrivals(ch, queue) }, toQueue(queue)
	if queue == "" {
		types := slices.Clone(op.Types)
		bind, destination = func(ch *amqp.Channel) error { return conn.bindPublished(ch, types) }, conn.toSubscribers(types)
	}
	key = delays.Key(steps, destination)
	if len(key) > maxShort {
		return "", "", fmt.Errorf("rabbitmq: delay a message to %q: the name takes %d bytes, and %d is the most for delays: %w",
			destination, len(key)-delays.Overhead(), maxShort-delays.Overhead(), transport.ErrNoQueue)
	}
	if err := b.bindDelay(ctx, destination, bind); err != nil {
		return "", "", unsent(err)
	}
	return delayLevel(delays.Entry(steps)), key, nil
}

// delayBindings remembers what a sender has made ready for delays.
type delayBindings struct {
	mu    sync.Mutex // guards bound
	bound map[string]struct{}
}

func (d *delayBindings) knows(destination string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.bound[destination]
	return ok
}

func (d *delayBindings) add(destination string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bound == nil {
		d.bound = make(map[string]struct{})
	}
	d.bound[destination] = struct{}{}
}

// ladderReady stands among the destinations for the ladder itself.
const ladderReady = ""

// bindDelay makes sure that delayed messages for destination reach it.
func (b *batch) bindDelay(ctx context.Context, destination string, bind func(*amqp.Channel) error) error {
	c, ready := b.conn, &b.sender.delays
	if ready.knows(destination) {
		return nil
	}
	return b.to.inTurn(ctx, func() error {
		if !ready.knows(ladderReady) {
			if err := c.ensureDelays(ctx); err != nil {
				return err
			}
			ready.add(ladderReady)
		}
		if ready.knows(destination) {
			return nil
		}
		if err := c.bindDelay(ctx, destination, bind); err != nil {
			return err
		}
		ready.add(destination)
		return nil
	})
}

// bindDelay leaves a destination that there is no right to bind to who receives from it, and has bound it; else what
// is sent is found in the queue of the lost.
func (c *conn) bindDelay(ctx context.Context, destination string, bind func(*amqp.Channel) error) error {
	err := c.onChannel(ctx, bind)
	if !isCode(err, amqp.AccessRefused) {
		return err
	}
	c.log.WarnContext(ctx, "no right to bind a queue to delayed messages: that is left to its owner", "destination", destination, "err", err)
	return nil
}

// ensureDelays creates the ladder unless the last part of it is there.
func (c *conn) ensureDelays(ctx context.Context) error {
	_, err := c.lookAt(ctx, delayNobody)
	if !isCode(err, amqp.NotFound) {
		return err
	}
	err = c.onChannel(ctx, declareDelays)
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: have somebody with the right to configure %q create what delays need, by Install", err, "holdfast.delay-*")
	}
	return err
}

// installDelays creates the ladder and has it end at the queues, which spares those who send to them
// the right to bind.
func (c *conn) installDelays(ctx context.Context, queues []transport.Queue) error {
	if err := c.ensureDelays(ctx); err != nil {
		return err
	}
	return c.onChannel(ctx, func(ch *amqp.Channel) error {
		for _, q := range queues {
			if q.Shared { // as others created it
				continue
			}
			if err := bindArrivals(ch, q.Name); err != nil {
				return err
			}
		}
		return nil
	})
}

// withDelay is a copy of a message for the way through the ladder. Its expiry is in a header. A key that it
// is to be published with in the end is in another, which the broker takes out: it routes by that too.
func withDelay(msg amqp.Publishing, due time.Time, ttl time.Duration, key string) *amqp.Publishing {
	msg.Expiration = ""
	if ttl <= 0 && key == "" {
		return &msg
	}
	table := make(amqp.Table, len(msg.Headers)+2)
	maps.Copy(table, msg.Headers)
	if ttl > 0 {
		table[expiresAt] = strconv.FormatInt(due.Add(ttl).UnixMicro(), 10)
	}
	if key != "" {
		table["BCC"] = []any{key} // see routes
	}
	msg.Headers = table
	return &msg
}

// expired tells whether a message that was delayed is past its expiry.
func expired(m *transport.Message, now time.Time) bool {
	at, err := strconv.ParseInt(m.Native[expiresAt], 10, 64)
	return err == nil && now.UnixMicro() >= at
}
