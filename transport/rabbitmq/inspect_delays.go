package rabbitmq

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// InspectDelays returns the depth of the queues in which delayed messages wait: of the levels that hold some, the queue of the lost, and
// the relays of the named queues, where they exist. Ready messages of a level are not due there yet. Messages that are being
// dead-lettered, such as those that a full queue refuses, are counted as unsettled: only the management API knows of them, and without
// [Transport.Management] the number is -1. The API's numbers are some seconds old.
func InspectDelays(ctx context.Context, conn transport.Conn, queues ...string) ([]transport.QueueStats, error) {
	c, err := own(conn)
	if err != nil {
		return nil, err
	}
	names := []string{delayLost}
	for level := range delays.Levels {
		names = append(names, delayLevel(level))
	}
	for _, queue := range queues {
		names = append(names, queueTarget(queue).relay())
	}
	var stats []transport.QueueStats
	for i, name := range names {
		s, err := c.inspectDelay(ctx, name)
		isRelay := i > delays.Levels
		if isRelay && isCode(err, amqp.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if isRelay || name == delayLost || s.Ready > 0 || s.Unsettled > 0 {
			stats = append(stats, s)
		}
	}
	return stats, nil
}

func (c *conn) inspectDelay(ctx context.Context, name string) (transport.QueueStats, error) {
	q, err := c.lookAt(ctx, name)
	s := transport.QueueStats{Name: name, Ready: int64(q.Messages), Unsettled: -1, Delayed: -1}
	if err != nil || c.management == nil {
		return s, err
	}
	managed, err := c.management.queue(ctx, name)
	if err == nil && managed.Messages != nil && managed.Ready != nil {
		s.Unsettled = *managed.Messages - *managed.Ready
	}
	return s, err
}
