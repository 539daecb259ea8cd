package sqs

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/transport"
)

// Satellites are the queues of the endpoint's own in which messages wait for long, and that for what SQS gives up, as far as
// they have been installed.
func (c *conn) Satellites() []transport.Satellite {
	if c.endpoint == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.ctx, requestTimeout)
	defer cancel()
	var own []transport.Satellite
	if dead := c.endpoint + DeadLettersSuffix; c.isThere(ctx, dead) {
		own = append(own, transport.Satellite{Queue: dead, Handle: c.deadLettered})
	} else if c.cfg.ReceiveLimit > 0 {
		c.log.InfoContext(ctx, "there is no queue for what SQS gives up: Install creates one, for queues that it creates afterwards", "queue", dead)
	}
	if c.cfg.ShortDelays {
		return own
	}
	for _, queue := range []string{c.endpoint, c.endpoint + "-" + c.instance} {
		if waits := queue + delaySuffix; c.isThere(ctx, waits) {
			own = append(own, transport.Satellite{Queue: waits, Handle: c.sendOn(queue), Concurrency: hopsAtOnce})
		}
	}
	return own
}

// isThere tells whether a queue can be worked on.
func (c *conn) isThere(ctx context.Context, queue string) bool {
	_, err := c.queueURL(ctx, queue)
	if err != nil && !errors.Is(err, transport.ErrNoQueue) {
		c.log.WarnContext(ctx, "a queue of the transport's own cannot be looked for, and is not worked on", "queue", queue, "err", err)
	}
	return err == nil
}

// deadLettered says why SQS has given a message up.
func (c *conn) deadLettered(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
	from := c.endpoint
	if arn := m.Native[deadLetteredIn]; arn != "" && !c.isCalled(c.endpoint, nameOf(arn)) {
		from = nameOf(arn)
	}
	return nil, &transport.DeadLetteredError{
		Queue: from, Reason: "it was received more often than the queue's maxReceiveCount allows", Count: c.cfg.ReceiveLimit,
	}
}

// isCalled tells whether a queue has that name at SQS.
func (c *conn) isCalled(queue, name string) bool {
	own, err := queueName(c.cfg.QueuePrefix, queue)
	return err == nil && own == name
}
