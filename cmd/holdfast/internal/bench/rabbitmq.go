package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// RabbitMQ is a server of it.
func RabbitMQ(url string) Broker { return rabbit{url} }

type rabbit struct{ url string }

// Remove removes also the exchange that the driver makes for each queue. While others are at work a server may
// fail over the deletion of a large queue, and end the connection: what is left is tried again until ctx ends.
func (r rabbit) Remove(ctx context.Context, _ string, queues []string) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		removed, err := r.remove(ctx, queues)
		queues = queues[removed:]
		if err == nil {
			return nil
		}
		var answer *amqp.Error
		refused := errors.As(err, &answer) && answer.Recover
		if refused || pause.Wait(ctx) != nil {
			return fmt.Errorf("left behind: %q: %w", queues, err)
		}
	}
}

// remove tells how many of the queues are gone.
func (r rabbit) remove(ctx context.Context, queues []string) (removed int, err error) {
	conn, err := r.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // what was asked has been answered
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	for i, q := range queues {
		if _, err := ch.QueueDelete(q, false, false, false); err != nil {
			return i, err
		}
		if err := ch.ExchangeDelete(q, false, false); err != nil {
			return i, err
		}
	}
	return len(queues), nil
}

// dial connects until ctx ends: the client library knows none.
func (r rabbit) dial(ctx context.Context) (*amqp.Connection, error) {
	return amqp.DialConfig(r.url, amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}})
}
