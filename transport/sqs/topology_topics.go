package sqs

import (
	"context"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sns"
)

// createTopics creates the missing topics of the types.
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

// createTopic returns the ARN of a topic. It creates the topic if it is missing.
func (c *conn) createTopic(ctx context.Context, name string) (arn string, err error) {
	ctx, cancel := c.request(ctx)
	defer cancel()
	out, err := c.clients.topics.CreateTopic(ctx, &sns.CreateTopicInput{Name: &name})
	if err != nil {
		return "", c.fault(err, "create topic %q", name)
	}
	return value(out.TopicArn), nil
}

// nameOf returns the name in an ARN.
func nameOf(arn string) string { return arn[strings.LastIndexByte(arn, ':')+1:] }

func noTopicCode(code string) bool { return code == "NotFound" || code == "NotFoundException" }

// isDenied reports whether the credentials lack the right to a request, or to the KMS key that it needs.
func isDenied(err error) bool {
	code := errorCode(err)
	return slices.Contains(deniedCodes, code) || slices.Contains(keyCodes, code)
}
