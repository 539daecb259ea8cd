package sqs

import (
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// publishOnce publishes entries to a topic in one request. again has the entries to publish once more: see results.
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
	ctx, cancel := c.request(c.ctx)
	defer cancel()
	r := sendResult{name: arn, verb: fmt.Sprintf("publish to topic %q", nameOf(arn))}
	r.err = c.paced(ctx, arn, func() error {
		out, err := c.topics.PublishBatch(ctx, in, r.tried.ofSNS)
		if hasCode(err, noTopicCodes) && c.cfg.MissingTopic == CreateMissingTopic {
			if _, err := c.createTopic(ctx, nameOf(arn)); err != nil {
				return err
			}
			out, err = c.topics.PublishBatch(ctx, in, r.tried.ofSNS)
		}
		if err != nil {
			return err
		}
		for _, f := range out.Failed {
			of := sqstypes.BatchResultErrorEntry{Id: f.Id, Code: f.Code, Message: f.Message, SenderFault: f.SenderFault}
			r.failed = append(r.failed, of)
		}
		return nil
	})
	switch {
	case !hasCode(r.err, noTopicCodes):
		return c.results(entries, &r)
	case c.cfg.MissingTopic == IgnoreMissingTopic:
		return make([]error, len(entries)), nil
	}
	err := fmt.Errorf("sqs: publish to topic %q, which does not exist: create it by Install or "+
		"\"holdfast endpoint create\", or set Transport.MissingTopic: %w", nameOf(arn), transport.ErrNoQueue)
	return slices.Repeat([]error{err}, len(entries)), nil
}
