package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Remove implements [transport.Remover]. With a queue it deletes the queue "<queue>.dead-letters",
// the queue that delayed messages for it pass last, in the conventional topology its exchange, and
// the policy that Install has set for it; the bindings, and with them the subscriptions, end with
// these. Messages that are delayed to the queue are in [LostQueue] when they are due.
func (c *schema) Remove(ctx context.Context, queues ...string) error {
	for _, queue := range queues {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error {
			for _, name := range []string{queue, queue + deadLettersSuffix, queueTarget(queue).relay()} {
				// Deleting a queue or an exchange that does not exist is no error.
				if _, err := ch.QueueDelete(name, false, false, false); err != nil {
					return wrap(err, "delete queue %q", name)
				}
			}
			if c.topology != (conventional{}) {
				return nil
			}
			return wrap(ch.ExchangeDelete(queue, false, false), "delete exchange %q", queue)
		})
		if isCode(err, amqp.AccessRefused) {
			return fmt.Errorf("%w: remove as a user with the right to configure it", err)
		}
		if err != nil {
			return err
		}
		c.removePolicy(ctx, queue)
	}
	return nil
}

// removePolicy deletes the policy that lifted the delivery limit of a queue, if Install may have
// created it. A policy that is left applies to no queue, so that a failure is only logged.
func (c *schema) removePolicy(ctx context.Context, queue string) {
	if c.management == nil || !c.needsLifting() {
		return
	}
	if err := c.management.deletePolicy(ctx, liftName(queue)); err != nil {
		c.log.WarnContext(ctx, "the policy of a deleted queue was not deleted", "queue", queue, "error", err)
	}
}
