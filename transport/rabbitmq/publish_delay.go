package rabbitmq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/delayeddelivery"
	"github.com/holdfast-go/holdfast/transport"
)

// delays is the ladder of queues for delays of up to 8.5 years in seconds. All endpoints of a
// virtual host share it.
var delays = delayeddelivery.Ladder{Levels: 28, Step: time.Second}

// LostQueue is the queue of delayed messages whose queue did not exist when they were due. Without
// it RabbitMQ's at-least-once dead-lettering would retry such a message for ever, and block those
// behind it.
const LostQueue = "holdfast.delay-lost"

const (
	// delayArrivals is the exchange at the bottom of the ladder.
	delayArrivals = "holdfast.delay-arrivals"
	// delaySink is a queue that gets each delayed publish beside its subscribers, and in which it
	// expires at once: a publish without subscribers would be retried for ever too.
	delaySink = "holdfast.delay-nobody"
	// expiresAt is the header with the expiry of a delayed message, in microseconds since 1970: the
	// broker's own expiration would end its wait in the ladder.
	expiresAt = "Holdfast.Delay.ExpiresAt"
	// delayedBy is the header of NServiceBus's delays, and concerns this delivery only.
	delayedBy = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
)

func delayLevel(level int) string { return fmt.Sprintf("holdfast.delay-level-%02d", level) }

// Prefixes of destinations. A relayed destination is one of the others behind relayedDestination.
const (
	queueDestination   = "queue."
	typeDestination    = "type."
	relayedDestination = "to."
)

// delayParts returns the queues and exchanges of the ladder in the order of their declaration: the
// last one exists only when all others do.
func delayParts() []part {
	quorum := amqp.Table{"x-queue-type": string(Quorum)}
	lost := amqp.Table{"alternate-exchange": LostQueue} // gets the messages that an exchange cannot route
	parts := []part{
		{name: LostQueue, exchange: amqp.ExchangeFanout},
		{name: LostQueue, args: quorum, bind: bindQueue(LostQueue, "", LostQueue)},
		{name: delayArrivals, exchange: amqp.ExchangeTopic, args: lost},
	}
	below := delayArrivals
	for level := range delays.Levels {
		parts = append(parts, delayLevelParts(level, below)...)
		below = delayLevel(level)
	}
	return append(parts,
		part{
			name: delaySink, args: amqp.Table{"x-queue-type": string(Quorum), "x-message-ttl": 0},
			bind: bindQueue(delaySink, delays.Arrives(typeDestination)+"#", delayArrivals),
		},
		part{
			name: delayDeliveries, exchange: amqp.ExchangeTopic, args: lost,
			bind: bindQueue(delaySink, delays.Arrives(relayedDestination+typeDestination)+"#", delayDeliveries),
		})
}

// delayLevelParts returns the exchange and the queue of a level, which dead-letters to the exchange
// below.
func delayLevelParts(level int, below string) []part {
	name := delayLevel(level)
	bind := func(ch *amqp.Channel) error {
		if err := bindQueue(name, delays.Waits(level), name)(ch); err != nil {
			return err
		}
		return wrap(ch.ExchangeBind(below, delays.Passes(level), name, false, nil), "bind exchange %q to %q", below, name)
	}
	args := expiring(delays.Wait(level), below)
	return []part{{name: name, exchange: amqp.ExchangeTopic}, {name: name, args: args, bind: bind}}
}

// expiring returns the arguments of a queue whose messages expire after ttl and are then sent to an
// exchange.
func expiring(ttl time.Duration, exchange string) amqp.Table {
	return amqp.Table{
		"x-queue-type":           string(Quorum),
		"x-message-ttl":          ttl.Milliseconds(),
		"x-dead-letter-exchange": exchange,
		"x-dead-letter-strategy": "at-least-once",
		"x-overflow":             "reject-publish",
	}
}

// delayed returns the exchange and the key of an operation that is due after d.
func (b *batch) delayed(ctx context.Context, op *transport.Operation, d time.Duration) (exchange, key string, err error) {
	steps, ok := delays.Steps(d)
	if !ok {
		return "", "", fmt.Errorf("rabbitmq: a delay of %v is over the longest, %v", d, delays.Max())
	}
	var to delayTarget
	if op.Queue != "" {
		to = queueTarget(op.Queue)
	} else {
		to = b.conn.typeTarget(slices.Clone(op.Types)) // binding may outlast ctx
	}
	if key = delays.Key(steps, to.relayed()); len(key) > maxShort {
		overhead := delays.Overhead() + len(relayedDestination)
		return "", "", fmt.Errorf("rabbitmq: delay a message to %q: the name takes %d bytes, and %d is the most for delays: %w",
			to.destination, len(key)-overhead, maxShort-overhead, transport.ErrNoQueue)
	}
	destination, err := b.bindDelay(ctx, to)
	if err != nil {
		return "", "", unsent(err)
	}
	return delayLevel(delays.Entry(steps)), delays.Key(steps, destination), nil
}

// withDelay returns a copy of a message for the ladder. Its expiry is in a header. The key that it
// is to be published with in the end is in another header, which the broker removes: it routes by
// that too.
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

// expired reports whether a message that was delayed is past its expiry.
func expired(m *transport.Message, now time.Time) bool {
	at, err := strconv.ParseInt(m.Native[expiresAt], 10, 64)
	return err == nil && now.UnixMicro() >= at
}
