package sqs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/holdfast-go/holdfast/transport"
)

// topicARN returns the ARN of the topic of a message type, whether it exists or not. ARNs are made
// of region, account and name, so no request looks for them.
func (c *conn) topicARN(ctx context.Context, messageType string) (string, error) {
	name, err := topicName(c.cfg.TopicPrefix, messageType)
	if err != nil {
		return "", err
	}
	topics, err := c.topicARNs(ctx)
	return topics + name, err
}

// topicARNs returns the prefix of the ARNs of the account's topics, such as
// "arn:aws:sns:eu-central-1:123456789012:".
func (c *conn) topicARNs(ctx context.Context) (string, error) {
	if topics := c.topicsARN.Load(); topics != nil {
		return *topics, nil
	}
	topics, err := c.findTopics(ctx)
	if err == nil {
		c.topicsARN.Store(&topics)
	}
	return topics, err
}

// findTopics reads the account from the ARN of the endpoint's queue or, if that is missing, from
// STS, which needs no right but is not reachable from every network.
func (c *conn) findTopics(ctx context.Context) (string, error) {
	var missing error
	if c.endpoint != "" {
		queue, err := c.queueARN(ctx, c.endpoint)
		parts := strings.SplitN(queue, ":", 6)
		switch {
		case err == nil && len(parts) == 6:
			return fmt.Sprintf("arn:%s:sns:%s:%s:", parts[1], parts[3], parts[4]), nil
		case err == nil:
			return "", fmt.Errorf("sqs: %q is not the ARN of a queue", queue)
		case !errors.Is(err, transport.ErrNoQueue):
			missing = err
		}
	}
	who, err := call(ctx, c, c.identity, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", c.fault(errors.Join(err, missing), "find out which account this is, for the names of topics")
	}
	partition, _, _ := strings.Cut(strings.TrimPrefix(value(who.Arn), "arn:"), ":")
	return fmt.Sprintf("arn:%s:sns:%s:%s:", partition, c.region, value(who.Account)), nil
}

// queueARN returns the ARN of a queue. It fails with ErrNoQueue if there is none.
func (c *conn) queueARN(ctx context.Context, queue string) (string, error) {
	return c.queueAttribute(ctx, queue, types.QueueAttributeNameQueueArn)
}

func (c *conn) queueAttribute(ctx context.Context, queue string, name types.QueueAttributeName) (string, error) {
	attributes, err := c.queueAttributes(ctx, queue, name)
	return attributes[string(name)], err
}

func (c *conn) topicAttribute(ctx context.Context, arn, name string) (string, error) {
	out, err := call(ctx, c, c.topics.GetTopicAttributes, &sns.GetTopicAttributesInput{TopicArn: &arn})
	if err != nil {
		return "", c.fault(err, "look at topic %q", nameOf(arn))
	}
	return out.Attributes[name], nil
}

func (c *conn) queueAttributes(
	ctx context.Context, queue string, names ...types.QueueAttributeName,
) (map[string]string, error) {
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return nil, err
	}
	in := &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: names}
	out, err := call(ctx, c, c.queues.GetQueueAttributes, in)
	if err != nil {
		if hasCode(err, noQueueCodes) {
			c.urls.forget(queue)
		}
		return nil, c.fault(err, "look at queue %q", queue)
	}
	return out.Attributes, nil
}
