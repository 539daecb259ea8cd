package sqs

import (
	"context"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// topic is a topic that a message is published to, with the additional attributes of the copies there.
type topic struct {
	arn        string
	attributes []attribute
}

// topics returns the topics of the types. SNS knows no base types, so the message is published to each.
func (c *conn) topics(ctx context.Context, typeNames []string) ([]topic, error) {
	topics := make([]topic, 0, len(typeNames))
	for i, name := range typeNames {
		arn, err := c.topicARN(ctx, name)
		if err != nil {
			return nil, err
		}
		t := topic{arn: arn}
		if len(typeNames) > 1 {
			t.attributes = []attribute{{copyAttribute, strconv.Itoa(i)}}
		}
		topics = append(topics, t)
	}
	return topics, nil
}

// publishOnce publishes entries to a topic in one request. again has the entries to publish once more: see results.
func (c *conn) publishOnce(arn string, entries []entry) (errs []error, again []int) {
	in := &sns.PublishBatchInput{
		TopicArn: &arn, PublishBatchRequestEntries: make([]types.PublishBatchRequestEntry, len(entries)),
	}
	for i := range entries {
		in.PublishBatchRequestEntries[i] = entries[i].published(i)
	}
	ctx, cancel := c.request(c.ctx)
	defer cancel()
	r := sendResult{name: arn, verb: fmt.Sprintf("publish to topic %q", nameOf(arn))}
	r.err = c.paced(ctx, arn, func() error {
		out, err := c.publish(ctx, in, &r.tried)
		if err != nil {
			return err
		}
		r.failed = make([]sqstypes.BatchResultErrorEntry, len(out.Failed))
		for i, f := range out.Failed {
			r.failed[i] = sqstypes.BatchResultErrorEntry{Id: f.Id, Code: f.Code, Message: f.Message, SenderFault: f.SenderFault}
		}
		return nil
	})
	if noTopicCode(errorCode(r.err)) {
		return all(entries, c.missingTopic(arn)), nil
	}
	return c.results(entries, &r)
}

// publish sends the request. It creates a missing topic if the configuration says so.
func (c *conn) publish(
	ctx context.Context, in *sns.PublishBatchInput, tried *attempts,
) (*sns.PublishBatchOutput, error) {
	out, err := c.clients.topics.PublishBatch(ctx, in, tried.ofSNS)
	if !noTopicCode(errorCode(err)) || c.cfg.MissingTopic != CreateMissingTopic {
		return out, err
	}
	if _, err := c.createTopic(ctx, nameOf(*in.TopicArn)); err != nil {
		return nil, err
	}
	return c.clients.topics.PublishBatch(ctx, in, tried.ofSNS)
}

// missingTopic returns the error of a message that is published to a topic that does not exist.
func (c *conn) missingTopic(arn string) error {
	if c.cfg.MissingTopic == IgnoreMissingTopic {
		return nil
	}
	return fmt.Errorf("sqs: publish to topic %q, which does not exist: create it by Install or "+
		"\"holdfast endpoint create\", or set Transport.MissingTopic: %w", nameOf(arn), transport.ErrNoQueue)
}

func (e *entry) published(i int) types.PublishBatchRequestEntry {
	r := types.PublishBatchRequestEntry{
		Id: aws.String(strconv.Itoa(i)), Message: &e.body, MessageGroupId: optional(e.group),
		MessageAttributes: make(map[string]types.MessageAttributeValue, len(e.attributes)),
	}
	for _, a := range e.attributes {
		r.MessageAttributes[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
	}
	return r
}
