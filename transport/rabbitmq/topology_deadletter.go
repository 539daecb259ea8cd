package rabbitmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	defaultDeliveryLimit = 100
	deadLettersSuffix    = ".dead-letters"
	// deadLettersAtOnce is how many dead letters are moved at once. Each waits for the broker to
	// confirm its copy, and one that the error queue refuses must not delay the others.
	deadLettersAtOnce = 8
	// expiredReason is the reason in x-death of a message that was longer in its queue than its
	// time to live.
	expiredReason = "expired"
)

// deadLetters is the dead-letter queue of an endpoint: for messages that returned to one of its own
// quorum queues more often than the delivery limit, which the broker would drop otherwise. The
// endpoint's own attempts end long before.
type deadLetters struct {
	queue string // "" where the endpoint has no name
	limit int    // 0: queues are declared with their type alone
}

func (t *Transport) deadLetters(endpoint string) (deadLetters, error) {
	var d deadLetters
	if endpoint != "" { // otherwise a tool: no endpoint would receive from the queue
		d.queue = endpoint + deadLettersSuffix
	}
	switch {
	case t.DeliveryLimit < None || t.DeliveryLimit > math.MaxInt32:
		return d, fmt.Errorf("rabbitmq: delivery limit %d: use 1 or more, 0 for %d, or None", t.DeliveryLimit, defaultDeliveryLimit)
	case t.DeliveryLimit != None:
		d.limit = cmp.Or(t.DeliveryLimit, defaultDeliveryLimit)
	}
	return d, nil
}

// wanted reports whether queues are to have a dead-letter queue.
func (d deadLetters) wanted() bool { return d.queue != "" && d.limit > 0 }

// queuePart returns a queue of a plan without its exchanges.
func (c *schema) queuePart(q transport.Queue) part {
	return part{name: q.Name, args: c.arguments(q), received: c.isQuorum(q) && (c.isBare() || !q.Shared)}
}

// arguments returns the arguments of a queue. Shared queues are declared as NServiceBus declares
// them.
func (c *schema) arguments(q transport.Queue) amqp.Table {
	if !c.isQuorum(q) {
		return nil
	}
	args := amqp.Table{"x-queue-type": string(Quorum)}
	if q.Shared || !c.deadLetters.wanted() {
		return args
	}
	// A negative limit would be none from 4.0, and before drop a message at its first return.
	args["x-delivery-limit"] = c.deadLetters.limit
	args["x-dead-letter-exchange"] = ""
	args["x-dead-letter-routing-key"] = c.deadLetters.queue
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish" // which that strategy needs
	return args
}

func (c *schema) isQuorum(q transport.Queue) bool { return c.queueType == Quorum || q.Counted }

// isLimited reports whether the delivery limit is that of a queue.
func (c *schema) isLimited(q transport.Queue) bool { return !q.Shared && c.isQuorum(q) }

func (c *schema) needsDeadLetters(queues []transport.Queue) bool {
	return c.deadLetters.wanted() && slices.ContainsFunc(queues, c.isLimited)
}

// installDeadLetters declares the dead-letter queue if one of the queues needs it.
func (c *schema) installDeadLetters(ctx context.Context, queues []transport.Queue) error {
	if c.needsDeadLetters(queues) {
		return c.onChannel(ctx, c.deadLetters.part().declare)
	}
	if c.deadLetters.queue == "" && !c.isBare() && slices.ContainsFunc(queues, c.isLimited) {
		c.log.WarnContext(ctx, "queues are created without a delivery limit and a dead-letter queue, for their endpoint is "+
			"not known: from 4.0 the broker drops a message that returns too often, before it delivers the message for ever. "+
			"Have the endpoint install its queues, or use holdfast endpoint create")
	}
	return nil
}

// part returns the dead-letter queue. It has none itself, and so the highest limit; from 4.0 the
// default limit is 20.
func (d deadLetters) part() part {
	return part{name: d.queue, args: amqp.Table{"x-queue-type": string(Quorum), "x-delivery-limit": math.MaxInt32}}
}

// Satellites implements [transport.Satellites]: it returns the dead-letter queue if that exists.
// Without a delivery limit it may exist too: for queues that were created with one.
func (c *conn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if c.deadLetters.queue == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	_, err := c.lookAt(ctx, c.deadLetters.queue)
	if err == nil {
		return []transport.Satellite{{Queue: c.deadLetters.queue, Concurrency: deadLettersAtOnce, Accepts: true, Handle: deadLettered}}, nil
	}
	if !errors.Is(err, transport.ErrNoQueue) {
		return nil, err
	}
	if c.deadLetters.wanted() && c.queueType == Quorum && c.version.atLeast(release40) {
		c.log.WarnContext(ctx, "the dead-letter queue does not exist, and this broker drops a message after 20 returns, "+
			"unless a policy says otherwise: create it with Install", "queue", c.deadLetters.queue)
	}
	return nil, nil
}

// deadLettered returns why the broker has dead-lettered a message. An expired one is dropped, as
// its sender asked.
func deadLettered(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
	// Without a readable entry the reason is unknown, and the message is moved to the error queue
	// all the same.
	d := lastDeath(m)
	if d.Reason == expiredReason {
		return nil, nil
	}
	return nil, &transport.DeadLetteredError{Queue: d.Queue, Reason: d.Reason, Count: d.Count}
}

// death is an entry of the header x-death.
type death struct {
	Queue, Reason string
	Count         int
	Keys          []string `json:"routing-keys"`
}

// lastDeath returns the latest entry, which is the first. Earlier ones are of the queues of delays.
func lastDeath(m *transport.Message) death {
	var deaths []death
	_ = json.Unmarshal([]byte(m.Native["x-death"]), &deaths) // what cannot be read stays empty
	if len(deaths) == 0 {
		return death{}
	}
	return deaths[0]
}
