package rabbitmq

import (
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// direct is the topology of one topic exchange. The routing key of a message has the names of its
// types, the most general first, and a subscription to a type matches the keys with its name in
// them.
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

func (direct) former(string) string { return "" }

// forQueue returns the exchange that subscriptions bind the queue to.
func (d direct) forQueue(string) []part { return d.forTypes(nil) }

func (d direct) forTypes([]string) []part {
	return []part{{name: d.exchange, exchange: amqp.ExchangeTopic}}
}

func (d direct) subscribe(ch *amqp.Channel, queue, name string) error {
	return ch.QueueBind(queue, pattern(name), d.exchange, false, nil)
}

func (d direct) unsubscribe(ch *amqp.Channel, queue, name string) error {
	return ch.QueueUnbind(queue, pattern(name), d.exchange, nil)
}

// pattern returns a binding key that matches a type and the types with that base type. NServiceBus
// binds the whole key of a type instead, for which the base types have to be known.
func pattern(name string) string { return "#." + word(name) + ".#" }
