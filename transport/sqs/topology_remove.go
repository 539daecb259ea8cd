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

// Remove implements [transport.Remover]. Each queue is deleted with its subscriptions, its queue for long delays and
// its queue for dead letters. Topics are kept. SQS creates no queue of the same name within a minute.
func (c *conn) Remove(ctx context.Context, queues ...string) error {
	var all []string
	for _, queue := range queues {
		all = append(all, queue)
		for _, suffix := range []string{delaySuffix, DeadLettersSuffix} {
			if _, err := queueName(c.cfg.QueuePrefix, queue+suffix); err == nil {
				all = append(all, queue+suffix)
			}
		}
	}
	if err := c.removeSubscriptions(ctx, queues); err != nil {
		return err
	}
	for _, queue := range all {
		if err := c.deleteQueue(ctx, queue); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) deleteQueue(ctx context.Context, queue string) error {
	url, err := c.queueURL(ctx, queue)
	if errors.Is(err, transport.ErrNoQueue) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	_, err = c.queues.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url})
	c.urls.forget(queue)
	if noQueueCode(errorCode(err)) {
		return nil
	}
	return c.fault(err, "delete queue %q", queue)
}

// removeSubscriptions lists all subscriptions of the account: SNS cannot list those of a queue.
func (c *conn) removeSubscriptions(ctx context.Context, queues []string) error {
	arns, err := c.existingARNs(ctx, queues)
	if err != nil || len(arns) == 0 {
		return err
	}
	in := &sns.ListSubscriptionsInput{}
	for {
		out, err := c.allSubscriptions(ctx, in)
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

func (c *conn) allSubscriptions(
	ctx context.Context, in *sns.ListSubscriptionsInput,
) (*sns.ListSubscriptionsOutput, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	return c.clients.topics.ListSubscriptions(ctx, in)
}

// existingARNs returns the ARNs of the queues that exist.
func (c *conn) existingARNs(ctx context.Context, queues []string) (arns []string, err error) {
	for _, queue := range queues {
		arn, err := c.queueARN(ctx, queue)
		if errors.Is(err, transport.ErrNoQueue) {
			continue
		}
		if err != nil {
			return nil, err
		}
		arns = append(arns, arn)
	}
	return arns, nil
}
