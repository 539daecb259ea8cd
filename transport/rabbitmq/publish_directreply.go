package rabbitmq

import (
	"errors"
	"strings"
)

// directReply begins the address of a caller that waits for a reply without a queue of its own
// (RabbitMQ: direct reply-to). The broker delivers a reply while it routes the reply: a mandatory
// one is returned although it has arrived, a probe arrives too, and nothing can be bound to the
// address. The broker drops a reply to a caller that is gone.
const directReply = "amq.rabbitmq.reply-to."

// isDirectReply reports whether a queue is the address of a direct reply.
func isDirectReply(queue string) bool { return strings.HasPrefix(queue, directReply) }

var errDelayedReply = errors.New("rabbitmq: a reply by direct reply-to cannot be delayed: the caller waits on its channel, and no queue keeps the reply")
