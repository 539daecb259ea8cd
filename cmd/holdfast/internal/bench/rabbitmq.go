package bench

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is a server of it.
func RabbitMQ(url string) Broker { return rabbit{url} }

type rabbit struct{ url string }

// Remove removes also the exchange that the driver makes for each queue.
func (r rabbit) Remove(_ context.Context, _ string, queues []string) (err error) {
	conn, err := amqp.Dial(r.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for _, q := range queues {
		if _, err := ch.QueueDelete(q, false, false, false); err != nil {
			return err
		}
		if err := ch.ExchangeDelete(q, false, false); err != nil {
			return err
		}
	}
	return nil
}
