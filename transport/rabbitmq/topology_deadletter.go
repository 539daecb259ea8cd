package rabbitmq

import (
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
	// deadLettersAtOnce is how many dead letters are moved at once. Each waits for the broker to confirm its copy, and one that
	// the error queue refuses must not hold up the others.
	deadLettersAtOnce = 8
	// expiredReason is why messages are dead-lettered whose sender gave them a time to live.
	expiredReason = "expired"
)

// deadLetters catches what the broker would drop: a message of the endpoint's own quorum queues that came
// back too often. The endpoint counts for itself and is done with a message long before. The zero
// value is none.
type deadLetters struct {
	queue    string // of what was given up
	limit    int
	nameless bool // there is none because the endpoint has no name
}

func (t *Transport) deadLetters(endpoint string) (deadLetters, error) {
	switch {
	case t.DeliveryLimit < -1 || t.DeliveryLimit > math.MaxInt32:
		return deadLetters{}, fmt.Errorf("rabbitmq: delivery limit %d: use 1 or more, 0 for %d, or -1 for none", t.DeliveryLimit, defaultDeliveryLimit)
	case t.DeliveryLimit == -1:
		return deadLetters{}, nil
	case endpoint == "": // a tool's: nobody would look after the queue
		return deadLetters{nameless: true}, nil
	case t.DeliveryLimit == 0:
		return deadLetters{queue: endpoint + deadLettersSuffix, limit: defaultDeliveryLimit}, nil
	default:
		return deadLetters{queue: endpoint + deadLettersSuffix, limit: t.DeliveryLimit}, nil
	}
}

// advice is for a queue that exists without the deadLetters.
func (b deadLetters) advice() string {
	if b.queue == "" {
		return ""
	}
	return fmt.Sprintf("give it a policy with delivery-limit %d, dead-letter-exchange \"\" and dead-letter-routing-key %q, or delete it while it is empty",
		b.limit, b.queue)
}

// arguments are what a queue is declared with. Queues of others too are as NServiceBus declares them.
func (c *conn) arguments(q transport.Queue) amqp.Table {
	if !c.isQuorum(q) {
		return nil
	}
	args := amqp.Table{"x-queue-type": string(Quorum)}
	if q.Shared || c.deadLetters.queue == "" {
		return args
	}
	// A negative limit would be none from 4.0, and drop at the first return before.
	args["x-delivery-limit"] = c.deadLetters.limit
	args["x-dead-letter-exchange"] = ""
	args["x-dead-letter-routing-key"] = c.deadLetters.queue
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish" // which that strategy asks for
	return args
}

func (c *conn) isQuorum(q transport.Queue) bool { return c.queueType == Quorum || q.Counted }

// installDeadLetters declares the queue for what the broker gives up in one of the queues.
func (c *conn) installDeadLetters(ctx context.Context, queues []transport.Queue) error {
	own := func(q transport.Queue) bool { return !q.Shared && c.isQuorum(q) }
	switch {
	case !slices.ContainsFunc(queues, own):
		return nil
	case c.deadLetters.nameless:
		c.log.WarnContext(ctx, "queues are created without a delivery limit and a target of dead letters, for it is not known whose they are: "+
			"what comes back too often the broker drops from 4.0, or returns for ever. Have the endpoint install them, or holdfast rabbitmq endpoint create")
		return nil
	case c.deadLetters.queue == "":
		return nil
	default:
		return c.onChannel(ctx, c.declareDeadLetters)
	}
}

// declareDeadLetters: behind this queue is none, so it has the highest limit there is. None at all
// would be the broker's default of 20 from 4.0.
func (c *conn) declareDeadLetters(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(c.deadLetters.queue, true, false, false, false, amqp.Table{
		"x-queue-type":     string(Quorum),
		"x-delivery-limit": math.MaxInt32,
	})
	return wrap(err, "declare queue %q", c.deadLetters.queue)
}

// Satellites implements [transport.Satellites]: the queue of the deadLetters, unless it has not been installed.
func (c *conn) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	drops := c.queueType == Quorum && c.version.atLeast(release40)
	if c.deadLetters.queue == "" {
		if drops {
			c.log.WarnContext(ctx, "without a delivery limit of our own this broker drops a message that came back 20 times, unless a policy says otherwise")
		}
		return nil, nil
	}
	_, err := c.lookAt(ctx, c.deadLetters.queue)
	if err == nil {
		return []transport.Satellite{{Queue: c.deadLetters.queue, Concurrency: deadLettersAtOnce, Handle: deadLettered}}, nil
	}
	if !errors.Is(err, transport.ErrNoQueue) {
		return nil, err
	}
	if drops {
		c.log.WarnContext(ctx, "there is no queue of dead letters, and this broker drops a message that came back 20 times unless a policy says otherwise: "+
			"create it with Install", "queue", c.deadLetters.queue)
	}
	return nil, nil
}

// deadLettered says why the broker has given a message up, but for one that has expired: that is
// what its sender wanted.
func deadLettered(_ context.Context, m *transport.Message) ([]transport.Operation, error) {
	d := lastDeath(m)
	if d.Reason == expiredReason {
		return nil, nil
	}
	return nil, d
}

// lastDeath reads the header x-death: the latest is the first. Earlier ones tell of a message's way
// through the queues of delays.
func lastDeath(m *transport.Message) *transport.DeadLetteredError {
	var deaths []struct {
		Queue, Reason string
		Count         int
	}
	// What cannot be read is not known, and the message goes to the error queue all the same.
	_ = json.Unmarshal([]byte(m.Native["x-death"]), &deaths)
	if len(deaths) == 0 {
		return &transport.DeadLetteredError{}
	}
	return &transport.DeadLetteredError{Queue: deaths[0].Queue, Reason: deaths[0].Reason, Count: deaths[0].Count}
}
