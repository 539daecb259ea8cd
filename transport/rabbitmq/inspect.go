package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

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

// Purge implements [transport.Purger]. The user needs the right to read the queue.
func (c *conn) Purge(ctx context.Context, queue string) (int64, error) {
	if _, err := c.lookAt(ctx, queue); err != nil {
		return 0, err
	}
	gone := make(chan int, 1) // what is done on the channel may outlast ctx
	err := c.onChannel(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueuePurge(queue, false)
		gone <- n
		return wrap(err, "purge queue %q", queue)
	})
	if err != nil {
		return 0, err
	}
	return int64(<-gone), nil
}

// lookAt finds a queue, or fails with ErrNoQueue.
func (c *conn) lookAt(ctx context.Context, name string) (amqp.Queue, error) {
	if len(name) > maxShort {
		return amqp.Queue{}, fmt.Errorf("rabbitmq: queue %.40q...: a name of %d bytes: %w", name, len(name), transport.ErrNoQueue)
	}
	var found amqp.Queue
	err := c.ask(ctx, func(ch *amqp.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return wrap(err, "look at queue %q", name)
	})
	if err != nil {
		return amqp.Queue{}, err // found is still being written to when ctx has ended
	}
	return found, nil
}
