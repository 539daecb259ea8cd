package sqs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

const (
	// rawDelivery is the attribute of a subscription that delivers messages without SNS's own
	// envelope.
	rawDelivery = "RawMessageDelivery"
	// policyTries is how often a policy is written and read back. AWS may take a minute to show a
	// change, and another writer may have overwritten it.
	policyTries = 20
	// policySettles is how long after its writing a policy is read once more: another writer may
	// have read it before the change and written it afterwards.
	policySettles = 200 * time.Millisecond
)

// Subscribe implements [transport.Subscriber]. It creates missing topics if the credentials have
// the right to.
func (c *conn) Subscribe(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := c.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	topics := make([]string, 0, len(typeNames))
	for _, typeName := range typeNames {
		arn, err := c.createTopicOf(ctx, typeName)
		if isDenied(err) { // then it must exist
			arn, err = c.topicARN(ctx, typeName)
		}
		if err != nil {
			return err
		}
		topics = append(topics, arn)
	}
	if err := c.letIn(ctx, queue, queueARN, topics); err != nil {
		return err
	}
	for _, arn := range topics {
		if err := c.subscribeTo(ctx, queueARN, arn); err != nil {
			return err
		}
	}
	c.noteSubscribed(queue, typeNames)
	return nil
}

// createTopicOf returns the ARN of the topic of a type. It creates the topic if it is missing.
func (c *conn) createTopicOf(ctx context.Context, typeName string) (string, error) {
	name, err := topicName(c.cfg.TopicPrefix, typeName)
	if err != nil {
		return "", err
	}
	return c.createTopic(ctx, name)
}

func (c *conn) createTopic(ctx context.Context, name string) (arn string, err error) {
	out, err := call(ctx, c, c.topics.CreateTopic, &sns.CreateTopicInput{Name: &name})
	if err != nil {
		return "", c.fault(err, "create topic %q", name)
	}
	return value(out.TopicArn), nil
}

// subscribeTo subscribes a queue to a topic, unless it is subscribed.
func (c *conn) subscribeTo(ctx context.Context, queueARN, topicARN string) error {
	_, err := call(ctx, c, c.topics.Subscribe, &sns.SubscribeInput{
		TopicArn: &topicARN, Protocol: aws.String("sqs"), Endpoint: &queueARN, ReturnSubscriptionArn: true,
		Attributes: map[string]string{rawDelivery: "true"},
	})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "already exists with different attributes"):
		return c.makeRaw(ctx, queueARN, topicARN)
	case hasCode(err, noTopicCodes):
		return c.fault(err, "subscribe %q to topic %q, which does not exist: create it with credentials that have the "+
			"right to", nameOf(queueARN), nameOf(topicARN))
	}
	return c.fault(err, "subscribe %q to topic %q", nameOf(queueARN), nameOf(topicARN))
}

// makeRaw sets raw delivery on a subscription that others have created. It keeps its other
// attributes, such as a filter.
func (c *conn) makeRaw(ctx context.Context, queueARN, topicARN string) error {
	arn, err := c.subscription(ctx, queueARN, topicARN)
	if err != nil || arn == "" {
		return err
	}
	_, err = call(ctx, c, c.topics.SetSubscriptionAttributes, &sns.SetSubscriptionAttributesInput{
		SubscriptionArn: &arn, AttributeName: aws.String(rawDelivery), AttributeValue: aws.String("true"),
	})
	return c.fault(err, "set raw delivery from topic %q to %q", nameOf(topicARN), nameOf(queueARN))
}

// Unsubscribe implements [transport.Subscriber]. It does not change the queue's policy.
func (c *conn) Unsubscribe(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := c.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	for _, typeName := range typeNames {
		topicARN, err := c.topicARN(ctx, typeName)
		if err != nil {
			return err
		}
		arn, err := c.subscription(ctx, queueARN, topicARN)
		if err == nil && arn != "" {
			err = c.unsubscribe(ctx, arn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) unsubscribe(ctx context.Context, arn string) error {
	_, err := call(ctx, c, c.topics.Unsubscribe, &sns.UnsubscribeInput{SubscriptionArn: &arn})
	if hasCode(err, noTopicCodes) {
		return nil
	}
	return c.fault(err, "unsubscribe %q", arn)
}

// subscription returns the ARN of a queue's subscription to a topic; "" if there is none.
func (c *conn) subscription(ctx context.Context, queueARN, topicARN string) (string, error) {
	in := &sns.ListSubscriptionsByTopicInput{TopicArn: &topicARN}
	for {
		out, err := call(ctx, c, c.topics.ListSubscriptionsByTopic, in)
		if hasCode(err, noTopicCodes) {
			return "", nil
		}
		if err != nil {
			return "", c.fault(err, "look for the subscriptions to topic %q", nameOf(topicARN))
		}
		for _, s := range out.Subscriptions {
			if value(s.Endpoint) == queueARN {
				return value(s.SubscriptionArn), nil
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return "", nil
		}
	}
}

// letIn lets the topics send to the queue. A policy can be written as a whole only, so it is read
// back until it has the change twice, in case other writers change it at the same time.
func (c *conn) letIn(ctx context.Context, queue, queueARN string, topics []string) error {
	if c.cfg.WidePolicy && len(topics) > 0 {
		prefix, err := sanitize(c.cfg.TopicPrefix)
		if err != nil {
			return fmt.Errorf("sqs: TopicPrefix: %w", err)
		}
		all, err := c.topicARNs(ctx)
		if err != nil {
			return err
		}
		topics = []string{all + prefix + "*"}
	}
	pause := backoff.Backoff{Min: policySettles, Max: 10 * time.Second}
	written := false
	for range policyTries {
		p, err := c.policy(ctx, queue)
		if err != nil {
			return err
		}
		allowed := func(arn string) bool { return p.allows(queueARN, arn) }
		missing := slices.DeleteFunc(slices.Clone(topics), allowed)
		switch {
		case len(missing) == 0 && !written:
			return nil
		case len(missing) == 0:
			written = false // read it once more, after the pause
		default:
			if err := c.writePolicy(ctx, queue, queueARN, p, missing); err != nil {
				return err
			}
			written = true
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("sqs: wait for the policy of queue %q: %w", queue, err)
		}
	}
	return fmt.Errorf("sqs: the policy of queue %q does not let in its topics, although it was written several times: "+
		"another program changes it, or AWS is slow: try again, or see \"holdfast sqs policy show\"", queue)
}

func (c *conn) policy(ctx context.Context, queue string) (*policy, error) {
	text, err := c.Policy(ctx, queue)
	if err != nil {
		return nil, err
	}
	p, err := parsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("sqs: policy of queue %q: %w", queue, err)
	}
	return p, nil
}

func (c *conn) writePolicy(ctx context.Context, queue, queueARN string, p *policy, topics []string) error {
	err := p.allow(queueARN, topics...)
	var text string
	if err == nil {
		text, err = p.text()
	}
	if err != nil {
		return fmt.Errorf("sqs: policy of queue %q: %w", queue, err)
	}
	url, err := c.queueURL(ctx, queue)
	if err != nil {
		return err
	}
	_, err = call(ctx, c, c.queues.SetQueueAttributes, &sqs.SetQueueAttributesInput{
		QueueUrl: &url, Attributes: map[string]string{string(types.QueueAttributeNamePolicy): text},
	})
	err = c.fault(err, "change queue %q", queue)
	if isDenied(err) {
		return fmt.Errorf("%w: let in %s with credentials that have the right to, as with \"holdfast sqs policy set\"",
			err, strings.Join(topics, ", "))
	}
	return err
}
