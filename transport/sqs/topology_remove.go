package sqs

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Remover = (*conn)(nil)

// Remove implements [transport.Remover]. Each queue is deleted with its subscriptions, its queue
// for long delays and its queue for dead letters. Topics are kept. SQS creates no queue of the same
// name within a minute.
func (c *conn) Remove(ctx context.Context, queues ...string) error {
	if err := c.removeSubscriptions(ctx, queues); err != nil {
		return err
	}
	for _, queue := range queues {
		for _, name := range []string{queue, queue + delaySuffix, queue + DeadLettersSuffix} {
			if _, err := queueName(c.cfg.QueuePrefix, name); err != nil && name != queue {
				continue // there cannot be one
			}
			if err := c.deleteQueue(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *conn) deleteQueue(ctx context.Context, queue string) error {
	url, err := c.queueURL(ctx, queue)
	if err == nil {
		_, err = call(ctx, c, c.queues.DeleteQueue, &sqs.DeleteQueueInput{QueueUrl: &url})
		err = c.fault(err, "delete queue %q", queue)
		c.urls.forget(queue)
	}
	if errors.Is(err, transport.ErrNoQueue) {
		return nil
	}
	return err
}

// removeSubscriptions lists all subscriptions of the account: SNS cannot list those of a queue.
func (c *conn) removeSubscriptions(ctx context.Context, queues []string) error {
	var arns []string
	for _, queue := range queues {
		arn, err := c.queueARN(ctx, queue)
		if err != nil && !errors.Is(err, transport.ErrNoQueue) {
			return err
		}
		if err == nil {
			arns = append(arns, arn)
		}
	}
	if len(arns) == 0 {
		return nil
	}
	in := &sns.ListSubscriptionsInput{}
	for {
		out, err := call(ctx, c, c.topics.ListSubscriptions, in)
		if err != nil {
			return c.fault(err, "look for the subscriptions of queues")
		}
		for _, s := range out.Subscriptions {
			if !slices.Contains(arns, value(s.Endpoint)) {
				continue
			}
			if err := c.unsubscribe(ctx, value(s.SubscriptionArn)); err != nil {
				return err
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return nil
		}
	}
}
