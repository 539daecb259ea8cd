package sqs

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Inspector = (*conn)(nil)

// Inspect implements [transport.Inspector]. SQS's counts are approximate, and some seconds old. Without names it
// inspects all queues with the prefix, by their names at SQS, except delay queues.
func (c *conn) Inspect(ctx context.Context, queues ...string) ([]transport.QueueStats, error) {
	if len(queues) == 0 {
		var err error
		if queues, err = c.listQueues(ctx); err != nil {
			return nil, err
		}
	}
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, queue := range queues {
		s, err := c.inspect(ctx, queue)
		if err != nil {
			return nil, err
		}
		if err := c.addHopping(ctx, &s); err != nil {
			return nil, err
		}
		stats = append(stats, s)
	}
	return stats, nil
}

func (c *conn) inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return transport.QueueStats{}, err
	}
	within, cancel := c.request(ctx)
	defer cancel()
	const (
		ready     = types.QueueAttributeNameApproximateNumberOfMessages
		unsettled = types.QueueAttributeNameApproximateNumberOfMessagesNotVisible
		delayed   = types.QueueAttributeNameApproximateNumberOfMessagesDelayed
	)
	out, err := c.queues.GetQueueAttributes(within, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{ready, unsettled, delayed},
	})
	if err != nil {
		if noQueueCode(errorCode(err)) {
			c.urls.forget(queue)
		}
		return transport.QueueStats{}, c.fault(err, "look at queue %q", queue)
	}
	count := func(name types.QueueAttributeName) int64 {
		n, err := strconv.ParseInt(out.Attributes[string(name)], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	return transport.QueueStats{Name: queue, Ready: count(ready), Unsettled: count(unsettled), Delayed: count(delayed)}, nil
}

// delayQueueAge is how long the absence of a delay queue is cached.
const delayQueueAge = time.Minute

// addHopping adds the messages of the delay queue to the delayed ones.
func (c *conn) addHopping(ctx context.Context, s *transport.QueueStats) error {
	if at, ok := c.withoutHops.Load(s.Name); ok && time.Since(at.(time.Time)) < delayQueueAge { //nolint:errcheck // always a time.Time
		return nil
	}
	waits := s.Name + delaySuffix
	if _, err := queueName(c.cfg.QueuePrefix, waits); err != nil {
		return nil //nolint:nilerr // there cannot be one
	}
	own, err := c.inspect(ctx, waits)
	if errors.Is(err, transport.ErrNoQueue) || isDenied(err) { // an endpoint that uses it has the right
		c.withoutHops.Store(s.Name, time.Now())
		return nil
	}
	if err != nil {
		return err
	}
	s.Delayed = max(0, s.Delayed) + max(0, own.Ready) + max(0, own.Unsettled) + max(0, own.Delayed)
	return nil
}

// listQueues returns the names of all standard queues with the prefix, without it.
func (c *conn) listQueues(ctx context.Context) (queues []string, err error) {
	if c.closed() {
		return nil, transport.ErrClosed
	}
	prefix, err := sanitize(c.cfg.QueuePrefix)
	if err != nil {
		return nil, err
	}
	in := &sqs.ListQueuesInput{QueueNamePrefix: optional(prefix), MaxResults: aws.Int32(1000)}
	for {
		within, cancel := c.request(ctx)
		out, err := c.queues.ListQueues(within, in)
		cancel()
		if err != nil {
			return nil, c.fault(err, "list queues")
		}
		for _, url := range out.QueueUrls {
			name := url[strings.LastIndexByte(url, '/')+1:]
			if !strings.HasSuffix(name, ".fifo") {
				queues = append(queues, strings.TrimPrefix(name, prefix))
			}
		}
		if out.NextToken == nil {
			return queues, nil
		}
		in.NextToken = out.NextToken
	}
}
