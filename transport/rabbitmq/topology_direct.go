package rabbitmq

import (
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// direct is the topology of one topic exchange. The routing key of a message has the names of its types, the most
// general first, and a subscription to a type matches the keys with its name in them.
type direct struct{ exchange string }

const defaultTopicExchange = "amq.topic"

// word returns the name of a type for a routing key, in which dots are separators.
func word(name string) string { return strings.ReplaceAll(name, ".", "-") }

func (d direct) address(types []string) (exchange, key string) {
	words := make([]string, len(types))
	for i, name := range types {
		words[i] = word(name)
	}
	slices.Reverse(words)
	return d.exchange, strings.Join(words, ".")
}

func (d direct) part() part { return part{name: d.exchange, exchange: amqp.ExchangeTopic} }

func (d direct) declare(ch *amqp.Channel) error {
	if d.isBrokers() {
		return d.findTypes(ch, nil)
	}
	return d.part().create(ch)
}

// isBrokers reports whether the exchange exists on every broker.
func (d direct) isBrokers() bool { return strings.HasPrefix(d.exchange, "amq.") }

// declareQueue does nothing: messages for a queue need no exchange.
func (direct) declareQueue(*amqp.Channel, string) error { return nil }

func (direct) removeQueue(*amqp.Channel, string) error { return nil }

func (d direct) declareTypes(ch *amqp.Channel, types []string) error {
	if _, key := d.address(types); len(key) > maxShort {
		return fmt.Errorf("rabbitmq: publish %s: its name and those of its base types take %d bytes, and %d is the most: "+
			"leave out base types, or use the conventional topology", types[0], len(key), maxShort)
	}
	return d.declare(ch)
}

func (d direct) findTypes(ch *amqp.Channel, _ []string) error {
	return d.part().find(ch)
}

func (d direct) parts(plan transport.Plan) []part {
	if d.isBrokers() || len(plan.Queues)+len(plan.Types) == 0 {
		return nil
	}
	return []part{d.part()}
}

func (d direct) subscribe(ch *amqp.Channel, queue, name string) error {
	return wrap(ch.QueueBind(queue, pattern(name), d.exchange, false, nil), "subscribe %q to %s", queue, name)
}

func (d direct) unsubscribe(ch *amqp.Channel, queue, name string) error {
	return wrap(ch.QueueUnbind(queue, pattern(name), d.exchange, nil), "unsubscribe %q from %s", queue, name)
}

// pattern returns a binding key that matches a type and the types with that base type. NServiceBus binds the whole
// key of a type instead, for which the base types have to be known.
func pattern(name string) string { return "#." + word(name) + ".#" }
