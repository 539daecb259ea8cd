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

// typeExchange is the exchange that a type is published to: "Namespace:Name", split at
// the last dot, as NServiceBus names it.
func typeExchange(name string) string {
	plain, _, _ := strings.Cut(name, "[") // the arguments of a generic type have dots too
	if dot := strings.LastIndexByte(plain, '.'); dot >= 0 {
		return name[:dot] + ":" + name[dot+1:]
	}
	return name
}

// Install declares an endpoint exchange and a queue for each queue of the plan, the
// exchanges of the types, and where delayed messages wait. What exists with other arguments is left alone and logged.
func (c *conn) Install(ctx context.Context, plan transport.Plan) error {
	if err := c.installDeadLetters(ctx, plan.Queues); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := c.installQueue(ctx, q); err != nil {
			return err
		}
	}
	if plan.Delays {
		if err := c.installDelays(ctx, plan.Queues); err != nil {
			return err
		}
	}
	for _, types := range plan.Types {
		if err := c.onChannel(ctx, func(ch *amqp.Channel) error { return declareTypes(ch, types) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) installQueue(ctx context.Context, q transport.Queue) error {
	name := q.Name
	args := c.arguments(q)
	err := c.onChannel(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return wrap(err, "declare queue %q", name)
	})
	if isCode(err, amqp.PreconditionFailed) {
		c.log.WarnContext(ctx, "a queue exists with other arguments and is used as it is",
			"queue", name, "err", err, "advice", c.backstop.advice())
		err = nil
	}
	if err != nil {
		return err
	}
	return c.onChannel(ctx, func(ch *amqp.Channel) error {
		if err := declareFanout(ch, name); err != nil {
			return err
		}
		return wrap(ch.QueueBind(name, "", name, false, nil), "bind queue %q to its exchange", name)
	})
}

// Subscribe binds the exchange of each type to the queue's exchange.
func (c *conn) Subscribe(ctx context.Context, queue string, types []string) error {
	return c.onChannel(ctx, func(ch *amqp.Channel) error {
		for _, name := range types {
			exchange := typeExchange(name)
			if err := declareFanout(ch, exchange); err != nil {
				return err
			}
			err := ch.ExchangeBind(queue, "", exchange, false, nil)
			if err := wrap(err, "subscribe %q to %s", queue, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unsubscribe removes these bindings.
func (c *conn) Unsubscribe(ctx context.Context, queue string, types []string) error {
	for _, name := range types {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error {
			err := ch.ExchangeUnbind(queue, "", typeExchange(name), false, nil)
			return wrap(err, "unsubscribe %q from %s", queue, name)
		})
		if err != nil && !isCode(err, amqp.NotFound) {
			return err
		}
	}
	return nil
}

// Inspect asks for the depth of the named queues. The protocol cannot list queues, and
// knows nothing of messages that are being handled.
func (c *conn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, name := range queues {
		q, err := c.lookAt(ctx, name)
		if err != nil {
			return nil, err
		}
		stats = append(stats, transport.QueueStats{Name: name, Ready: int64(q.Messages), Unsettled: -1, Delayed: -1})
	}
	return stats, nil
}

// lookAt finds a queue, or fails with ErrNoQueue.
func (c *conn) lookAt(ctx context.Context, name string) (amqp.Queue, error) {
	if len(name) > maxShort {
		return amqp.Queue{}, fmt.Errorf("rabbitmq: queue %.40q...: a name of %d bytes: %w", name, len(name), transport.ErrNoQueue)
	}
	var found amqp.Queue
	err := c.onChannel(ctx, func(ch *amqp.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return wrap(err, "look at queue %q", name)
	})
	if err != nil {
		return amqp.Queue{}, err // found is still being written to when ctx has ended
	}
	return found, nil
}

// onChannel runs f with a channel of its own, which a refused declaration closes, on
// the connection that receives.
func (c *conn) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	w, err := c.receiving.within(ctx, connectPatience)
	if err != nil {
		return err
	}
	return c.call(ctx, func() error { return withChannel(w.conn, f) })
}

func withChannel(conn *amqp.Connection, f func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return wrap(err, "open a channel")
	}
	defer ch.Close() //nolint:errcheck // closed already when f failed
	return f(ch)
}

// brokerError is what the client library reported, in words and still to be recognised.
type brokerError struct {
	doing string
	cause error
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &brokerError{doing: fmt.Sprintf(format, args...), cause: err}
}

func (e *brokerError) Error() string {
	return "rabbitmq: " + e.doing + ": " + plain(e.cause).Error()
}

func (e *brokerError) Unwrap() []error { return []error{e.cause, plain(e.cause)} }

func declareFanout(ch *amqp.Channel, name string) error {
	err := ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil)
	return wrap(err, "declare exchange %q", name)
}

// declareTypes declares the exchange of the first type, and those of its base types bound
// to it directly: the broker gives a queue one copy over however many ways.
func declareTypes(ch *amqp.Channel, types []string) error {
	for i, name := range types {
		if err := declareFanout(ch, typeExchange(name)); err != nil {
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

// declared remembers the types that a publisher has declared: once per connection,
// because in the meantime somebody may have deleted them.
type declared struct {
	turn chan struct{} // held while declaring; a channel, to be waited for with a context

	mu    sync.Mutex // guards types
	types map[string][]string
}

// ensureType declares the exchanges of types unless this publisher has done so.
func (p *publisher) ensureType(ctx context.Context, c *conn, types []string) error {
	d := &p.declared
	if d.knows(types) {
		return nil
	}
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("rabbitmq: declare exchange for %s: %w", types[0], context.Cause(ctx))
	}
	defer func() { <-d.turn }()
	if d.knows(types) {
		return nil
	}
	err := c.onChannel(ctx, func(ch *amqp.Channel) error { return declareTypes(ch, types) })
	if err == nil {
		d.add(types)
	}
	return err
}

func (d *declared) knows(types []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Equal(d.types[types[0]], types)
}

func (d *declared) add(types []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.types == nil {
		d.types = make(map[string][]string)
	}
	d.types[types[0]] = slices.Clone(types)
}
