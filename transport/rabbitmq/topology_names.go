package rabbitmq

import (
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// checkNames fails if one name of a plan would be that of two things: the exchange of a type has
// the name of the exchange of a queue, which would get the events, or an error or audit queue is
// the endpoint's dead-letter queue, whose messages would return to it.
func (c *schema) checkNames(plan transport.Plan) error {
	for _, q := range plan.Queues {
		if c.needsDeadLetters(plan.Queues) && q.Name == c.deadLetters.queue {
			return fmt.Errorf("rabbitmq: queue %q is the endpoint's dead-letter queue and cannot be another queue of it too: "+
				"use another name", q.Name)
		}
	}
	if c.topology != (conventional{}) { // queues have no exchanges
		return nil
	}
	for _, name := range slices.Concat(plan.Types...) {
		exchange := typeExchange(name)
		if slices.ContainsFunc(plan.Queues, func(q transport.Queue) bool { return q.Name == exchange }) {
			return fmt.Errorf("rabbitmq: the exchange of %s is that of the queue %q, which would get its messages: "+
				"use another name for the queue", name, exchange)
		}
	}
	return nil
}
