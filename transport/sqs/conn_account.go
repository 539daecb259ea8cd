package sqs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/holdfast-go/holdfast/transport"
)

// account is the AWS account. The ARNs of topics are made of region, account and name, so no request looks for them.
type account struct {
	turn   chan struct{} // holds a token, which guards topics
	topics string        // prefix of the ARNs of topics, such as "arn:aws:sns:eu-central-1:123456789012:"; "" is unknown
}

func newAccount() account {
	a := account{turn: make(chan struct{}, 1)}
	a.turn <- struct{}{}
	return a
}

// topicARN returns the ARN of the topic of a message type, whether it exists or not.
func (c *conn) topicARN(ctx context.Context, messageType string) (string, error) {
	name, err := topicName(c.cfg.TopicPrefix, messageType)
	if err != nil {
		return "", err
	}
	topics, err := c.topicARNs(ctx)
	return topics + name, err
}

// topicARNs returns the prefix of the ARNs of the account's topics.
func (c *conn) topicARNs(ctx context.Context) (string, error) {
	select {
	case <-c.account.turn:
	case <-ctx.Done():
		return "", fmt.Errorf("sqs: find out which account this is: %w", context.Cause(ctx))
	}
	defer func() { c.account.turn <- struct{}{} }()
	if c.account.topics != "" {
		return c.account.topics, nil
	}
	topics, err := c.findTopics(ctx)
	if err == nil {
		c.account.topics = topics
	}
	return topics, err
}

// findTopics reads the account from the ARN of the endpoint's queue or, if that is missing, from STS, which needs no
// right but is not reachable from every network.
func (c *conn) findTopics(ctx context.Context) (string, error) {
	var missing error
	if c.endpoint != "" {
		arn, err := c.queueARN(ctx, c.endpoint)
		if err == nil {
			return topicsOf(arn)
		}
		if !errors.Is(err, transport.ErrNoQueue) {
			missing = err
		}
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	who, err := c.identity.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", c.fault(errors.Join(err, missing), "find out which account this is, for the names of topics")
	}
	partition, _, _ := strings.Cut(strings.TrimPrefix(value(who.Arn), "arn:"), ":")
	return fmt.Sprintf("arn:%s:sns:%s:%s:", partition, c.region, value(who.Account)), nil
}

// topicsOf returns the prefix of the topics' ARNs in the account and region of a queue.
func topicsOf(queueARN string) (string, error) {
	parts := strings.SplitN(queueARN, ":", 6)
	if len(parts) != 6 {
		return "", fmt.Errorf("sqs: %q is not the ARN of a queue", queueARN)
	}
	return fmt.Sprintf("arn:%s:sns:%s:%s:", parts[1], parts[3], parts[4]), nil
}

// queueARN returns the ARN of a queue. It fails with ErrNoQueue if there is none.
func (c *conn) queueARN(ctx context.Context, queue string) (string, error) {
	attributes, err := c.queueAttributes(ctx, queue, types.QueueAttributeNameQueueArn)
	if err != nil {
		return "", err
	}
	return attributes[string(types.QueueAttributeNameQueueArn)], nil
}

func (c *conn) queueAttributes(
	ctx context.Context, queue string, names ...types.QueueAttributeName,
) (map[string]string, error) {
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	out, err := c.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names})
	if err != nil {
		if noQueueCode(errorCode(err)) {
			c.urls.forget(queue)
		}
		return nil, c.fault(err, "look at queue %q", queue)
	}
	return out.Attributes, nil
}

func (c *conn) setQueueAttributes(ctx context.Context, queue string, attributes map[string]string) error {
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return err
	}
	ctx, cancel := c.request(ctx)
	defer cancel()
	_, err = c.queues.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: &url, Attributes: attributes})
	return c.fault(err, "change queue %q", queue)
}
