package sqs

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// Admin is what the connection of a [Transport] offers to tools, beside the interfaces of package transport: find it by
// type assertion. Its methods may be called by many goroutines.
type Admin interface {
	// DeleteQueues deletes queues with all that is in them, those in which their messages wait for long, and their
	// subscriptions. A queue that does not exist is no error. SQS takes a minute to forget a queue: until then it cannot be created
	// again.
	DeleteQueues(ctx context.Context, queues ...string) error
	// Policy is the queue's policy, as JSON; "" when it has none. It fails with [transport.ErrNoQueue].
	Policy(ctx context.Context, queue string) (string, error)
	// LetIn has the queue's policy let in the topics of message types, as Subscribe does, and leaves the rest of it as it is.
	LetIn(ctx context.Context, queue string, types []string) error
}

var _ Admin = (*conn)(nil)

// DeleteQueues is described at [Admin].
func (c *conn) DeleteQueues(ctx context.Context, queues ...string) error {
	if err := c.endSubscriptions(ctx, queues); err != nil {
		return err
	}
	for _, queue := range queues {
		if err := c.deleteQueue(ctx, queue); err != nil {
			return err
		}
		if _, err := queueName(c.cfg.QueuePrefix, queue+delaySuffix); err != nil {
			continue // it cannot have one
		}
		if err := c.deleteQueue(ctx, queue+delaySuffix); err != nil {
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

// endSubscriptions goes through all subscriptions of the account, once: SNS cannot be asked for those of a queue.
func (c *conn) endSubscriptions(ctx context.Context, queues []string) error {
	arns, err := c.arnsOf(ctx, queues)
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

func (c *conn) allSubscriptions(ctx context.Context, in *sns.ListSubscriptionsInput) (*sns.ListSubscriptionsOutput, error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	return c.clients.topics.ListSubscriptions(ctx, in)
}

// arnsOf are the ARNs of those queues that exist.
func (c *conn) arnsOf(ctx context.Context, queues []string) (arns []string, err error) {
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

// Policy is described at [Admin].
func (c *conn) Policy(ctx context.Context, queue string) (string, error) {
	attributes, err := c.queueAttributes(ctx, queue, types.QueueAttributeNamePolicy)
	return attributes[string(types.QueueAttributeNamePolicy)], err
}

// LetIn is described at [Admin].
func (c *conn) LetIn(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := c.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	topics := make([]string, len(typeNames))
	for i, typeName := range typeNames {
		if topics[i], err = c.topicARN(ctx, typeName); err != nil {
			return err
		}
	}
	return c.letIn(ctx, queue, queueARN, topics)
}
