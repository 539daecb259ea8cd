package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// onChannel runs f with a channel of its own, which a refused declaration closes, on
// the connection that receives.
func (c *conn) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	w, err := c.receiving.within(ctx, connectPatience)
	if err != nil {
		return err
	}
	return c.call(ctx, func() error { return withChannel(w.conn, f) })
}

// ask is onChannel with a channel that is kept, for questions that are asked again and again.
func (c *conn) ask(ctx context.Context, f func(*amqp.Channel) error) error {
	w, err := c.receiving.within(ctx, connectPatience)
	if err != nil {
		return err
	}
	return c.call(ctx, func() error { return w.ask(f) })
}

func (c *consuming) ask(f func(*amqp.Channel) error) (err error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	if c.asked == nil || c.asked.IsClosed() { // by an answer that was a refusal
		if c.asked, err = c.conn.Channel(); err != nil {
			return wrap(err, "open a channel")
		}
	}
	return f(c.asked)
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

// ensure declares something. Who may not declare uses what is there; an error says what is not.
func (c *conn) ensure(ctx context.Context, declare, find func(*amqp.Channel) error) error {
	refused := c.onChannel(ctx, declare)
	if !isCode(refused, amqp.AccessRefused) {
		return refused
	}
	if missing := c.onChannel(ctx, find); missing != nil {
		return fmt.Errorf("%w (%w): have it created by Install, by a user with the right to configure", missing, refused)
	}
	return nil
}
