package sqs

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// Satellites implements [transport.Satellites]: the dead-letter queue and the delay queues of the
// endpoint, if they exist.
func (c *conn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if c.endpoint == "" {
		return nil, nil
	}
	dead := c.endpoint + DeadLettersSuffix
	all := []transport.Satellite{{Queue: dead, Handle: c.deadLettered}}
	if !c.cfg.ShortDelays {
		for _, queue := range []string{c.endpoint, c.endpoint + "-" + c.instance} {
			all = append(all, transport.Satellite{
				Queue: queue + delaySuffix, Handle: c.sendOn(queue), Concurrency: maxBatch,
			})
		}
	}
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	for i, s := range all {
		asking.Go(func() { _, errs[i] = c.queueURL(ctx, s.Queue) })
	}
	asking.Wait()
	var found []transport.Satellite
	var failed error
	for i, s := range all {
		switch err := errs[i]; {
		case err == nil:
			found = append(found, s)
		case !errors.Is(err, transport.ErrNoQueue):
			failed = errors.Join(failed, err)
		case s.Queue == dead && c.cfg.ReceiveLimit > 0:
			c.log.InfoContext(ctx, "the dead-letter queue does not exist: Install creates it, and sets it on queues that it "+
				"creates afterwards", "queue", dead)
		}
	}
	return found, failed
}

// deadLettered returns the reason why SQS moved a message to the dead-letter queue.
func (c *conn) deadLettered(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
	from := c.endpoint
	if arn := m.Native[deadLetteredIn]; arn != "" && !c.isCalled(c.endpoint, nameOf(arn)) {
		from = nameOf(arn)
	}
	return nil, &transport.DeadLetteredError{
		Queue: from, Count: c.cfg.ReceiveLimit,
		Reason: "it was received more often than the queue's maxReceiveCount allows",
	}
}

// isCalled reports whether a queue has that name at SQS.
func (c *conn) isCalled(queue, name string) bool {
	own, err := queueName(c.cfg.QueuePrefix, queue)
	return err == nil && own == name
}
