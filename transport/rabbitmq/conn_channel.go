package rabbitmq

import (
	"context"
	"errors"
	"log/slog"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

// channels opens channels for declarations and questions on the receiving connection.
type channels struct {
	log       *slog.Logger
	receiving *supervisor[*receiveConn]
	tasks     goroutines.Group
}

// request calls f with the receiving connection, for a request that has the same effect if it is
// made twice. It calls f again, if need be on the next connection, as long as the failure is
// momentary.
func (c *channels) request(ctx context.Context, f func(*receiveConn) error) error {
	var again repetition
	failed := false
	for {
		in, err := c.receiving.await(ctx)
		if err == nil {
			err = c.call(ctx, func() error { return f(in) })
			if !isMomentary(err, in.brokerConn) {
				return err
			}
			failed = true
		}
		if !failed || errors.Is(err, transport.ErrClosed) || !again.again(ctx) {
			return err
		}
	}
}

// onChannel runs f as a request with a channel of its own on the receiving connection. A refused
// declaration closes the channel.
func (c *channels) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	return c.request(ctx, func(in *receiveConn) error { return withChannel(in.brokerConn, f) })
}

// ask is onChannel with a channel that is kept, for frequent questions.
func (c *channels) ask(ctx context.Context, f func(*amqp.Channel) error) error {
	return c.request(ctx, func(in *receiveConn) (err error) {
		in.asking.Lock()
		defer in.asking.Unlock()
		if in.asked == nil || in.asked.IsClosed() { // by a refusal
			if in.asked, err = in.Channel(); err != nil {
				return wrap(err, "open a channel")
			}
		}
		return f(in.asked)
	})
}

func withChannel(conn *brokerConn, f func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return wrap(err, "open a channel")
	}
	defer ch.Close() //nolint:errcheck // closed already when f failed
	return f(ch)
}

// call runs f, a request to the broker without a context, and stops waiting for it when ctx ends.
// The loss of the connection ends f.
func (c *channels) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !c.tasks.Go(func() { done <- f() }) {
		return transport.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
