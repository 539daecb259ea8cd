package sqs

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// publishOnce publishes entries to a topic in one request. again has the entries to publish once
// more: see sendBatch.
func (c *conn) publishOnce(arn string, entries []entry) (errs []error, again []int) {
	in := &sns.PublishBatchInput{
		TopicArn: &arn, PublishBatchRequestEntries: make([]types.PublishBatchRequestEntry, len(entries)),
	}
	for i := range entries {
		e := &entries[i]
		attributes := make(map[string]types.MessageAttributeValue, len(e.attributes))
		for _, a := range e.attributes {
			attributes[a.name] = types.MessageAttributeValue{DataType: aws.String(textType), StringValue: &a.value}
		}
		in.PublishBatchRequestEntries[i] = types.PublishBatchRequestEntry{
			Id: idOf(i), Message: &e.body, MessageAttributes: attributes, MessageGroupId: optional(e.group),
		}
	}
	verb := fmt.Sprintf("publish to topic %q", nameOf(arn))
	return c.sendBatch(arn, verb, entries, func(ctx context.Context, tried *attempts) (failed failures, err error) {
		out, err := c.topics.PublishBatch(ctx, in, tried.ofSNS)
		if hasCode(err, noTopicCodes) && c.cfg.MissingTopic == CreateMissingTopic {
			if _, err := c.createTopic(ctx, nameOf(arn)); err != nil {
				return nil, err
			}
			out, err = c.topics.PublishBatch(ctx, in, tried.ofSNS)
		}
		switch {
		case hasCode(err, noTopicCodes) && c.cfg.MissingTopic == IgnoreMissingTopic:
			return nil, nil
		case hasCode(err, noTopicCodes):
			return nil, fmt.Errorf("it does not exist: create it by Install or \"holdfast endpoint create\", or set "+
				"Transport.MissingTopic: %w", transport.ErrNoQueue)
		case err != nil:
			return nil, err
		}
		for _, f := range out.Failed {
			of := sqstypes.BatchResultErrorEntry{Id: f.Id, Code: f.Code, Message: f.Message, SenderFault: f.SenderFault}
			failed = append(failed, of)
		}
		return failed, nil
	})
}
