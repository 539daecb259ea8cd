package rabbitmq

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// conventional is the topology of fanout exchanges: one for each type, to which its messages are
// published and which is bound to those of its base types, and one for each queue, which a
// subscription binds to that of a type.
type conventional struct{}

// typeExchange returns the exchange of a type as NServiceBus names it: "Namespace:Name". The
// namespace of a nested type, "Namespace.Outer+Name", is that of its outermost type, and the
// arguments of a generic type, "Namespace.Name`1[[...]]", are not part of the name.
func typeExchange(name string) string {
	name, _, _ = strings.Cut(name, "[")
	outermost, _, _ := strings.Cut(name, "+")
	namespace := outermost[:max(0, strings.LastIndexByte(outermost, '.'))]
	if i := strings.LastIndexAny(name, "+"); i >= 0 {
		return namespace + ":" + name[i+1:]
	}
	return namespace + ":" + name[strings.LastIndexByte(name, '.')+1:]
}

// formerExchange returns the exchange of a type as older versions of this package named it, and ""
// where the name is the same.
func formerExchange(name string) string {
	former := name
	plain, _, _ := strings.Cut(name, "[")
	if dot := strings.LastIndexByte(plain, '.'); dot >= 0 {
		former = name[:dot] + ":" + name[dot+1:]
	}
	if former == typeExchange(name) {
		return ""
	}
	return former
}

func (conventional) address(types []string) (exchange, key string) { return typeExchange(types[0]), "" }

func (conventional) former(name string) string { return formerExchange(name) }

func (conventional) forQueue(name string) []part {
	return []part{{name: name, exchange: amqp.ExchangeFanout, bind: bindQueue(name, "", name)}}
}

// forTypes binds the exchanges of base types directly to that of the type: the broker delivers one
// copy to a queue, over however many bindings.
func (conventional) forTypes(types []string) (parts []part) {
	for i, name := range types {
		p := part{name: typeExchange(name), exchange: amqp.ExchangeFanout}
		if i > 0 && name != types[0] {
			p.bind = func(ch *amqp.Channel) error {
				err := ch.ExchangeBind(typeExchange(name), "", typeExchange(types[0]), false, nil)
				return wrap(err, "bind %s to its base type %s", types[0], name)
			}
		}
		parts = append(parts, p)
	}
	return parts
}

func (conventional) subscribe(ch *amqp.Channel, queue, name string) error {
	return ch.ExchangeBind(queue, "", typeExchange(name), false, nil)
}

func (conventional) unsubscribe(ch *amqp.Channel, queue, name string) error {
	return ch.ExchangeUnbind(queue, "", typeExchange(name), false, nil)
}
