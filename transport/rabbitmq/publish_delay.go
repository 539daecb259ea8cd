package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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
func (b *batch) delayed(
	ctx context.Context, op *transport.Operation, d time.Duration,
) (exchange, key string, err error) {
	steps, ok := delays.Steps(d)
	if !ok {
		return "", "", fmt.Errorf("rabbitmq: a delay of %v is over the longest, %v", d, delays.Max())
	}
	var to delayTarget
	if op.Queue != "" {
		to = queueTarget(op.Queue)
	} else {
		to = b.by.delays.typeTarget(slices.Clone(op.Types)) // binding may outlast ctx
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

func (t delayTarget) relay() string { return delayRelay + t.destination }

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

// delayQueues is the part of a conn with the queues in which delayed messages wait.
type delayQueues struct {
	*core
	exchanges *exchanges
}

func (d *delayQueues) typeTarget(types []string) delayTarget {
	to, typesKey := d.topology.address(types)
	return delayTarget{typeDestination + cmp.Or(typesKey, to), types, func(ch *amqp.Channel, key, exchange string) error {
		if err := d.declareTypes(types)(ch); err != nil {
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
	bound := &b.sender.bound
	in, ok := bound.get(to.destination)
	if ok {
		return in, nil
	}
	err = b.to.inTurn(ctx, func() (err error) {
		if !bound.has(ladderReady) {
			if err := b.by.delays.ensureDelays(ctx); err != nil {
				return err
			}
			bound.set(ladderReady, "")
		}
		if in, ok = bound.get(to.destination); ok {
			return nil
		}
		if in, err = b.by.delays.bindDelay(ctx, to); err == nil {
			bound.set(to.destination, in)
		}
		return err
	})
	return in, err
}

// bindDelay creates the relay of a destination. Without the right to, it uses the relay that the
// owner's Install has created. Where there is none, messages reach the destination without one, as
// those of older versions do: a full queue then delays the messages for others.
func (d *delayQueues) bindDelay(ctx context.Context, to delayTarget) (in string, err error) {
	refused := d.onChannel(ctx, to.declareRelay)
	if refused == nil {
		return to.relayed(), unlessRefused(d.exchanges.bindFormer(ctx, to.types))
	}
	if !isCode(refused, amqp.AccessRefused) {
		return to.relayed(), refused
	}
	_, err = d.lookAt(ctx, to.relay())
	if err == nil || !isCode(err, amqp.NotFound) {
		return to.relayed(), err
	}
	d.log.WarnContext(ctx, "no right to create the relay of a destination of delayed messages: while that is full, it "+
		"holds up all delays of the virtual host; have it created by Install, by a user with the right to configure it",
		"relay", to.relay(), "err", refused)
	err = d.onChannel(ctx, to.bindDirectly)
	if isCode(err, amqp.AccessRefused) {
		d.log.WarnContext(ctx, "no right to bind a queue to delayed messages: its owner has to; until then they are moved to "+
			LostQueue, "destination", to.destination, "err", err)
		err = nil
	}
	return to.destination, err
}

// ensureDelays creates the ladder unless the last part of it exists.
func (d *delayQueues) ensureDelays(ctx context.Context) error {
	parts := delayParts()
	err := d.ask(ctx, parts[len(parts)-1].find)
	if !isCode(err, amqp.NotFound) {
		return err
	}
	err = d.onChannel(ctx, declareAll(parts))
	if isCode(err, amqp.AccessRefused) {
		return fmt.Errorf("%w: have a user with the right to configure %q create what delays need, by Install", err, "holdfast.delay-*")
	}
	return err
}

// installDelays creates the ladder, and relays for the queues of the endpoint, so that senders need
// no right to create them. Messages of senders of older versions arrive too.
func (d *delayQueues) installDelays(ctx context.Context, queues []transport.Queue) error {
	if err := d.ensureDelays(ctx); err != nil {
		return err
	}
	return d.onChannel(ctx, func(ch *amqp.Channel) error {
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

// directReply begins the address of a caller that waits for a reply without a queue of its own
// (RabbitMQ: direct reply-to). The broker delivers a reply while it routes the reply: a mandatory
// one is returned although it has arrived, a probe arrives too, and nothing can be bound to the
// address. The broker drops a reply to a caller that is gone.
const directReply = "amq.rabbitmq.reply-to."

// isDirectReply reports whether a queue is the address of a direct reply.
func isDirectReply(queue string) bool { return strings.HasPrefix(queue, directReply) }

var errDelayedReply = errors.New("rabbitmq: a reply by direct reply-to cannot be delayed: the caller waits on its channel, and no queue keeps the reply")
