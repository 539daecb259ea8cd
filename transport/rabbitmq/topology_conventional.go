package rabbitmq

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// conventional is the topology of fanout exchanges: one for each type, to which its messages are published and which is
// bound to those of its base types, and one for each queue, which a subscription binds to that of a type.
type conventional struct{}

// typeExchange returns the exchange that a type is published to: "Namespace:Name", split at the last dot, as
// NServiceBus names it.
func typeExchange(name string) string {
	plain, _, _ := strings.Cut(name, "[") // the arguments of a generic type have dots too
	if dot := strings.LastIndexByte(plain, '.'); dot >= 0 {
		return name[:dot] + ":" + name[dot+1:]
	}
	return name
}

func (conventional) address(types []string) (exchange, key string) { return typeExchange(types[0]), "" }

// declare does nothing: types share nothing.
func (conventional) declare(*amqp.Channel) error { return nil }

func (conventional) declareQueue(ch *amqp.Channel, name string) error {
	if err := fanout(name).create(ch); err != nil {
		return err
	}
	return wrap(ch.QueueBind(name, "", name, false, nil), "bind queue %q to its exchange", name)
}

func (conventional) removeQueue(ch *amqp.Channel, name string) error {
	return wrap(ch.ExchangeDelete(name, false, false), "delete exchange %q", name)
}

// declareTypes declares the exchange of the first type, and those of its base types bound to it directly: the broker
// delivers one copy to a queue, over however many bindings.
func (conventional) declareTypes(ch *amqp.Channel, types []string) error {
	for i, name := range types {
		if err := fanout(typeExchange(name)).create(ch); err != nil {
			return err
		}
		if i == 0 || name == types[0] {
			continue
		}
		err := ch.ExchangeBind(typeExchange(name), "", typeExchange(types[0]), false, nil)
		if err := wrap(err, "bind %s to its base type %s", types[0], name); err != nil {
			return err
		}
	}
	return nil
}

func (conventional) findTypes(ch *amqp.Channel, types []string) error {
	return fanout(typeExchange(types[0])).find(ch)
}

func (conventional) parts(plan transport.Plan) (parts []part) {
	for _, q := range plan.Queues {
		parts = append(parts, fanout(q.Name))
	}
	for _, types := range plan.Types {
		for _, name := range types {
			parts = append(parts, fanout(typeExchange(name)))
		}
	}
	return parts
}

func (conventional) subscribe(ch *amqp.Channel, queue, name string) error {
	err := ch.ExchangeBind(queue, "", typeExchange(name), false, nil)
	return wrap(err, "subscribe %q to %s", queue, name)
}

func (conventional) unsubscribe(ch *amqp.Channel, queue, name string) error {
	err := ch.ExchangeUnbind(queue, "", typeExchange(name), false, nil)
	return wrap(err, "unsubscribe %q from %s", queue, name)
}

func fanout(name string) part { return part{name: name, exchange: amqp.ExchangeFanout} }
