package sqs

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/holdfast-go/holdfast/transport"
)

// roomAge is how long the size limit of a queue or topic is cached: its owner may change it.
const roomAge = time.Minute

// rooms caches the size limits of queues and topics. The zero value is ready.
type rooms struct {
	mu    sync.Mutex // guards known
	known map[string]room
}

type room struct {
	bytes int
	at    time.Time
}

func (r *rooms) get(name string) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.known[name]
	return known.bytes, ok && time.Since(known.at) < roomAge
}

func (r *rooms) set(name string, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = make(map[string]room)
	}
	r.known[name] = room{bytes, time.Now()}
}

// roomIn returns the size limit of a queue in bytes. It requests the limit only for a message over 256 KiB, the former
// limit of SQS, and returns the configured limit if the request is denied.
func (c *conn) roomIn(ctx context.Context, queue string, size int) (int, error) {
	if n, ok := c.rooms.get(queue); ok {
		return min(n, c.cfg.MaxMessage), nil
	}
	if size <= minMessage {
		return c.cfg.MaxMessage, nil
	}
	attributes, err := c.queueAttributes(ctx, queue, types.QueueAttributeNameMaximumMessageSize)
	if err != nil && !isDenied(err) {
		return 0, err
	}
	n, err := strconv.Atoi(attributes[string(types.QueueAttributeNameMaximumMessageSize)])
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
	ctx, cancel := c.request(ctx)
	defer cancel()
	out, err := c.clients.topics.GetTopicAttributes(ctx, &sns.GetTopicAttributesInput{TopicArn: &arn})
	n := maxPublished
	switch {
	case err == nil:
		if own, err := strconv.Atoi(out.Attributes["MaximumMessageSize"]); err == nil {
			n = own
		}
	case !isDenied(err) && !noTopicCode(errorCode(err)):
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
