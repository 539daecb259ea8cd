package sqs

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/transport"
)

// roomIn returns the size limit of a queue in bytes. It requests the limit only for a message over 256 KiB, the former
// limit of SQS, and returns the configured limit if the request is denied.
func (c *conn) roomIn(ctx context.Context, queue string, size int) (int, error) {
	if n, ok := c.rooms.get(queue); ok {
		return min(n, c.cfg.MaxMessage), nil
	}
	if size <= minMessage {
		return c.cfg.MaxMessage, nil
	}
	limit, err := c.queueAttribute(ctx, queue, types.QueueAttributeNameMaximumMessageSize)
	if err != nil && !isDenied(err) {
		return 0, err
	}
	n, err := strconv.Atoi(limit)
	if err != nil {
		n = c.cfg.MaxMessage
	}
	c.rooms.set(queue, n)
	return min(n, c.cfg.MaxMessage), nil
}

// roomOf returns the size limit of a topic in bytes: 256 KiB unless the topic has a higher one. See roomIn.
func (c *conn) roomOf(ctx context.Context, arn string, size int) (int, error) {
	if n, ok := c.rooms.get(arn); ok {
		return n, nil
	}
	if size <= maxPublished {
		return maxPublished, nil
	}
	out, err := call(ctx, c, c.topics.GetTopicAttributes, &sns.GetTopicAttributesInput{TopicArn: &arn})
	n := maxPublished
	switch {
	case err == nil:
		if own, err := strconv.Atoi(out.Attributes["MaximumMessageSize"]); err == nil {
			n = own
		}
	case !isDenied(err) && !hasCode(err, noTopicCodes):
		return 0, c.fault(err, "look at topic %q", nameOf(arn))
	}
	c.rooms.set(arn, n)
	return n, nil
}

// allowedSize finds the limit of a queue, a topic or a batch in an error of AWS.
var allowedSize = regexp.MustCompile(`(?:shorter|longer) than (\d+) bytes`)

// sized returns own, the error of a message that was refused with err. If err is about the size, it adds a
// TooLargeError and caches the limit of the queue or topic of that name.
func (c *conn) sized(name string, e *entry, own, err error) error {
	refused, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return own
	}
	said := allowedSize.FindStringSubmatch(refused.ErrorMessage())
	if said == nil {
		return own
	}
	most, err := strconv.Atoi(said[1])
	if err != nil || e.size() <= most {
		return own
	}
	c.rooms.set(name, most)
	return fmt.Errorf("%w: %w", &transport.TooLargeError{What: "message", Size: e.size(), Max: most}, own)
}
