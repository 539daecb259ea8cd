package rabbitmq

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/goroutines"
	"github.com/holdfast-go/holdfast/transport"
)

// channels opens channels for declarations and questions on the receiving connection.
type channels struct {
	log       *slog.Logger
	receiving *supervisor[*receiveConn]
	tasks     goroutines.Group
}

// openTries is the number of attempts to open a channel. The client library closes a connection over a late answer for a
// channel that it has closed, as when a queue is deleted that has consumers.
const openTries = 5

// onChannel runs f with a channel of its own on the receiving connection. A refused declaration closes the channel. If the
// connection ends before f is called, onChannel tries again on the next connection.
func (c *channels) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	pause := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for try := 1; ; try++ {
		in, err := c.receiving.await(ctx)
		if err != nil {
			return err
		}
		var called atomic.Bool
		err = c.call(ctx, func() error {
			return withChannel(in.brokerConn, func(ch *amqp.Channel) error {
				called.Store(true)
				return f(ch)
			})
		})
		if err == nil || called.Load() || try == openTries || errors.Is(err, transport.ErrClosed) || pause.Wait(ctx) != nil {
			return err
		}
	}
}

// ask is onChannel with a channel that is kept, for frequent questions.
func (c *channels) ask(ctx context.Context, f func(*amqp.Channel) error) error {
	in, err := c.receiving.await(ctx)
	if err != nil {
		return err
	}
	return c.call(ctx, func() (err error) {
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

// call runs f, a request to the broker without a context, and stops waiting for it when ctx ends. The loss of the
// connection ends f.
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
