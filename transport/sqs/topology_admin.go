package sqs

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Admin is implemented by the connection of a [Transport], for tools that manage the policies of
// queues: find it by type assertion. It is safe for concurrent use.
type Admin interface {
	// Policy returns the queue's policy, as JSON; "" when it has none. It fails with
	// [transport.ErrNoQueue].
	Policy(ctx context.Context, queue string) (string, error)
	// LetIn lets the topics of message types send to the queue, as Subscribe does, by a statement
	// of the queue's policy. It changes no other statement.
	LetIn(ctx context.Context, queue string, types []string) error
}

var _ Admin = (*conn)(nil)

// Policy is described at [Admin].
func (c *conn) Policy(ctx context.Context, queue string) (string, error) {
	return c.queueAttribute(ctx, queue, types.QueueAttributeNamePolicy)
}

// LetIn is described at [Admin].
func (c *conn) LetIn(ctx context.Context, queue string, typeNames []string) error {
	queueARN, err := c.queueARN(ctx, queue)
	if err != nil {
		return err
	}
	topics := make([]string, len(typeNames))
	for i, typeName := range typeNames {
		if topics[i], err = c.topicARN(ctx, typeName); err != nil {
			return err
		}
	}
	return c.letIn(ctx, queue, queueARN, topics)
}
