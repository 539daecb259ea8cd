package sqs

import (
	"context"
	"time"
)

// maxDelay is the longest that SQS itself keeps a message back.
const maxDelay = 15 * time.Minute

// longDelay is the queue at which a message for another one waits longer than maxDelay, and the message as it goes there.
func (c *conn) longDelay(context.Context, string, time.Duration, payload) (queue string, e entry, err error) {
	return "", entry{}, errUnfinished
}
