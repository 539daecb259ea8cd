package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exchanges is the part of a conn with the exchanges of types, and the subscriptions of queues.
type exchanges struct{ *core }

// Subscribe implements [transport.Subscriber].
func (e *exchanges) Subscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		if err := e.ensureTypes(ctx, []string{name}); err != nil {
			return err
		}
		err := e.onChannel(ctx, func(ch *amqp.Channel) error {
			return wrap(e.topology.subscribe(ch, queue, name), "subscribe %q to %s", queue, name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Unsubscribe implements [transport.Subscriber].
func (e *exchanges) Unsubscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		err := e.onChannel(ctx, func(ch *amqp.Channel) error {
			return wrap(e.topology.unsubscribe(ch, queue, name), "unsubscribe %q from %s", queue, name)
		})
		if err != nil && !isCode(err, amqp.NotFound) {
			return err
		}
		if err := e.unsubscribeFormer(ctx, queue, name); err != nil {
			return err
		}
	}
	return nil
}

// ensureTypes is declareTypes. Without the right to declare, the exchange of the first type has to
// exist.
func (e *exchanges) ensureTypes(ctx context.Context, types []string) error {
	refused := e.onChannel(ctx, e.declareTypes(types))
	if refused == nil {
		return unlessRefused(e.bindFormer(ctx, types))
	}
	if !isCode(refused, amqp.AccessRefused) {
		return refused
	}
	if missing := e.onChannel(ctx, e.topology.forTypes(types)[0].find); missing != nil {
		return fmt.Errorf("%w (%w): have it created by Install, by a user with the right to configure", missing, refused)
	}
	return nil
}

// The exchanges of nested types, of generic types and of types without a namespace had other names
// in older versions. While instances of older versions, and the bindings that they have made,
// exist, each event has to reach the subscribers at both exchanges once, whichever exchange its
// publisher uses:
//
//   - An older publisher uses the former exchange. The subscribers of this version, and those of NServiceBus, are bound to
//     the present exchange: hence former → present.
//   - A publisher of this version, or of NServiceBus, uses the present exchange. A subscriber of an older version, or one
//     that was upgraded and not started since, is bound to the former exchange: hence present → former.
//   - A base type is bound present → present by this version and former → former by older ones. The two bindings of each
//     type make one graph of all four exchanges.
//   - A delayed publish of an older version is routed to the former exchange when it is due, and the two bindings apply
//     then. A delayed publish of this version is routed to the present one.
//
// The two bindings are a cycle, and a subscriber that was upgraded is bound to both exchanges.
// RabbitMQ visits each exchange once for each message, and gives each queue one copy over however
// many bindings, hence nothing is doubled.
//
// Two conditions limit the bindings:
//
//   - The former exchange exists. Only older versions create that: where none ever ran, nothing is added.
//   - It is not the exchange of a queue. The former exchange of a type without a namespace has the bare name of the type.
//     The endpoint of that name, or NServiceBus for a queue of that name, declares the same exchange: present → former would
//     bring events to the queue, and former → present would publish the messages that NServiceBus sends to the queue. In
//     this case subscribers have to be upgraded before publishers; their older bindings to the former exchange stay.

// bindFormer binds the former exchanges of types to the present ones, both ways.
func (e *exchanges) bindFormer(ctx context.Context, types []string) error {
	for _, name := range types {
		former, err := e.findFormer(ctx, name)
		if err != nil {
			return err
		}
		if former == "" {
			continue
		}
		apply := (*amqp.Channel).ExchangeBind
		if isQueues, err := e.isQueues(ctx, former); err != nil {
			return err
		} else if isQueues { // the queue may be younger than the bindings
			apply = (*amqp.Channel).ExchangeUnbind
		}
		present := typeExchange(name)
		err = e.onChannel(ctx, func(ch *amqp.Channel) error {
			if err := apply(ch, former, "", present, false, nil); err != nil {
				return err
			}
			return apply(ch, present, "", former, false, nil)
		})
		if err != nil {
			return wrap(err, "bind the exchange %q that older versions use for %s", former, name)
		}
	}
	return nil
}

// installFormer is bindFormer for Install. A refusal is logged: it concerns older versions alone.
func (e *exchanges) installFormer(ctx context.Context, types []string) error {
	err := e.bindFormer(ctx, types)
	if unlessRefused(err) != nil {
		return err
	}
	if err != nil {
		e.log.WarnContext(ctx, "events may not cross between this version and older ones: have them bound by Install, by a user "+
			"with the right to read and write both exchanges, or upgrade all subscribers before the publishers", "err", err)
	}
	return nil
}

// unsubscribeFormer removes the binding of a queue that an older version has made. The present
// exchange alone does not end the subscription: bindFormer brings its events to the former one.
func (e *exchanges) unsubscribeFormer(ctx context.Context, queue, name string) error {
	former, err := e.findFormer(ctx, name)
	if err != nil || former == "" {
		return err
	}
	err = e.onChannel(ctx, func(ch *amqp.Channel) error {
		err := ch.ExchangeUnbind(queue, "", former, false, nil)
		return wrap(err, "unsubscribe %q from %s in its exchange of older versions %q", queue, name, former)
	})
	if isCode(err, amqp.NotFound) {
		return nil
	}
	return err
}

// findFormer returns the former exchange of a type. It returns "" if the name has not changed, or
// the exchange does not exist.
func (e *exchanges) findFormer(ctx context.Context, name string) (string, error) {
	former := e.topology.former(name)
	if former == "" || len(former) > maxShort {
		return "", nil
	}
	err := e.ask(ctx, part{name: former, exchange: amqp.ExchangeFanout}.find)
	if isCode(err, amqp.NotFound) {
		return "", nil
	}
	return former, err
}

// isQueues reports whether a queue has the name of an exchange, which then is the exchange of the
// queue.
func (e *exchanges) isQueues(ctx context.Context, exchange string) (bool, error) {
	_, err := e.lookAt(ctx, exchange)
	switch {
	case err == nil, isCode(err, amqp.ResourceLocked): // the queue of another connection alone
		return true, nil
	case isCode(err, amqp.NotFound):
		return false, nil
	}
	return false, err
}

// unlessRefused returns err unless the broker has refused a right.
func unlessRefused(err error) error {
	if isCode(err, amqp.AccessRefused) {
		return nil
	}
	return err
}
