package sqs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/transport"
)

// topic is where a message is published, and what attributes its copies there have besides its own.
type topic struct {
	arn        string
	attributes []attribute
}

// topics are those that a message of these types is published to: SNS knows no base types, so there is a copy for each.
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

// publishBatch publishes up to ten entries to a topic and returns an error for each.
func (c *conn) publishBatch(ctx context.Context, arn string, entries []entry) []error {
	errs, again := c.publishOnce(ctx, arn, entries)
	for _, i := range again {
		one, _ := c.publishOnce(ctx, arn, entries[i:i+1])
		errs[i] = one[0]
	}
	return errs
}

// publishOnce publishes entries in one request, and says which ones should be published once more: those that AWS failed
// through no fault of theirs, or all where it refused them together and does not say because of which.
func (c *conn) publishOnce(ctx context.Context, arn string, entries []entry) (errs []error, again []int) {
	errs = make([]error, len(entries))
	in := &sns.PublishBatchInput{TopicArn: &arn, PublishBatchRequestEntries: make([]types.PublishBatchRequestEntry, len(entries))}
	for i := range entries {
		in.PublishBatchRequestEntries[i] = entries[i].published(i)
	}
	var (
		tried attempts
		out   *sns.PublishBatchOutput
	)
	within, cancel := c.request(ctx)
	defer cancel()
	err := c.paced(within, arn, func() (err error) {
		out, err = c.publish(within, in, &tried)
		return err
	})
	switch {
	case noTopicCode(errorCode(err)):
		return all(errs, c.missingTopic(arn)), nil
	case err != nil:
		if len(entries) > 1 && refusedAsAWhole(err) {
			again = each(len(entries))
		}
		own := tried.outcome(c.fault(err, "publish to topic %q", nameOf(arn)), err)
		if len(entries) == 1 {
			own = c.sized(arn, &entries[0], own, err)
		}
		return all(errs, own), again
	}
	for _, f := range out.Failed {
		i, ok := indexOf(f.Id, len(entries))
		if !ok {
			continue
		}
		errs[i] = c.sized(arn, &entries[i], c.fault(entryErrorOfSNS(&f), "publish to topic %q", nameOf(arn)), entryErrorOfSNS(&f))
		if failed := entryErrorOfSNS(&f); throttled(failed) {
			c.sending.note(failed)
			errs[i] = fmt.Errorf("%w: %w", errs[i], transport.ErrUnreachable)
		} else if !f.SenderFault {
			errs[i] = fmt.Errorf("%w: %w", errs[i], transport.ErrUnreachable)
			again = append(again, i)
		}
	}
	return errs, again
}

// entryErrorOfSNS is entryError for SNS.
func entryErrorOfSNS(f *types.BatchResultErrorEntry) error {
	return &smithy.GenericAPIError{Code: value(f.Code), Message: value(f.Message)}
}

// publish is the request, after creating the topic where that is wanted.
func (c *conn) publish(ctx context.Context, in *sns.PublishBatchInput, tried *attempts) (*sns.PublishBatchOutput, error) {
	out, err := c.clients.topics.PublishBatch(ctx, in, tried.ofSNS)
	if !noTopicCode(errorCode(err)) || c.cfg.MissingTopic != CreateMissingTopic {
		return out, err
	}
	if _, err := c.createTopic(ctx, nameOf(*in.TopicArn)); err != nil {
		return nil, err
	}
	return c.clients.topics.PublishBatch(ctx, in, tried.ofSNS)
}

// missingTopic is what becomes of a message for a topic that there is not.
func (c *conn) missingTopic(arn string) error {
	if c.cfg.MissingTopic == IgnoreMissingTopic {
		return nil
	}
	return fmt.Errorf("sqs: publish to topic %q, which does not exist: create it by Install or \"holdfast sqs endpoint create\", or set Transport.MissingTopic: %w",
		nameOf(arn), transport.ErrNoQueue)
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

// createTopics creates the topics of types that are not there.
func (c *conn) createTopics(ctx context.Context, typeNames []string) error {
	for _, typeName := range typeNames {
		name, err := topicName(c.cfg.TopicPrefix, typeName)
		if err != nil {
			return err
		}
		if _, err := c.createTopic(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// createTopic returns the ARN of a topic, which is created if need be.
func (c *conn) createTopic(ctx context.Context, name string) (arn string, err error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	out, err := c.clients.topics.CreateTopic(ctx, &sns.CreateTopicInput{Name: &name})
	if err != nil {
		return "", c.fault(err, "create topic %q", name)
	}
	return value(out.TopicArn), nil
}

// nameOf is the name in an ARN.
func nameOf(arn string) string { return arn[strings.LastIndexByte(arn, ':')+1:] }

func noTopicCode(code string) bool { return code == "NotFound" || code == "NotFoundException" }

// isDenied tells an error of a request that the credentials have no right to, be it for the sake of a KMS key.
func isDenied(err error) bool {
	code := errorCode(err)
	return slices.Contains(deniedCodes, code) || slices.Contains(keyCodes, code)
}
