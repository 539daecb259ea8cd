package sqs

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/holdfast-go/holdfast/transport"
)

// roomIn returns the size limit of a queue in bytes: the configured limit if the queue has no lower
// one.
func (c *conn) roomIn(ctx context.Context, queue string, size int) (int, error) {
	n, err := c.room(queue, size, c.cfg.MaxMessage, func() (string, error) {
		return c.queueAttribute(ctx, queue, types.QueueAttributeNameMaximumMessageSize)
	})
	return min(n, c.cfg.MaxMessage), err
}

// roomOf returns the size limit of a topic in bytes: 256 KiB unless the topic has a higher one.
func (c *conn) roomOf(ctx context.Context, arn string, size int) (int, error) {
	return c.room(arn, size, maxPublished, func() (string, error) {
		return c.topicAttribute(ctx, arn, "MaximumMessageSize")
	})
}

// room returns the size limit of a queue or topic. It requests the limit only for a message over
// 256 KiB, the former limit of SQS and SNS, and returns unknown if the request is denied.
func (c *conn) room(name string, size, unknown int, request func() (string, error)) (int, error) {
	if n, ok := c.rooms.get(name); ok {
		return n, nil
	}
	if size <= minMessage {
		return unknown, nil
	}
	limit, err := request()
	if err != nil && !isDenied(err) && !hasCode(err, noTopicCodes) {
		return 0, err
	}
	n, err := strconv.Atoi(limit)
	if err != nil {
		n = unknown
	}
	c.rooms.set(name, n)
	return n, nil
}

// allowedSize finds the limit of a queue, a topic or a batch in an error of AWS.
var allowedSize = regexp.MustCompile(`(?:shorter|longer) than (\d+) bytes`)

// sized returns own, the error of a message that was refused with err. If err is about the size, it
// adds a TooLargeError and caches the limit of the queue or topic of that name. If err is about the
// content otherwise, it adds ErrContent.
func (c *conn) sized(name string, e *entry, own, err error) error {
	said := allowedSize.FindStringSubmatch(err.Error())
	if said == nil {
		if hasCode(err, contentCodes) {
			return fmt.Errorf("%w: %w", transport.ErrContent, own)
		}
		return own
	}
	most, err := strconv.Atoi(said[1])
	if err != nil || e.size() <= most {
		return own
	}
	c.rooms.set(name, most)
	return fmt.Errorf("%w: %w", &transport.TooLargeError{What: "message", Size: e.size(), Max: most}, own)
}
