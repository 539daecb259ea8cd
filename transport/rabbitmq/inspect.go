package rabbitmq

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// inspector is the part of a conn that counts messages, and removes them.
type inspector struct{ *core }

// Inspect implements [transport.Inspector]. AMQP cannot list queues, and has no number of unsettled
// messages.
func (in *inspector) Inspect(
	ctx context.Context, queues ...string,
) ([]transport.QueueStats, error) {
	stats := make([]transport.QueueStats, 0, len(queues))
	for _, name := range queues {
		if isDirectReply(name) { // replies are lost when the caller is gone, and are no failure of the message
			stats = append(stats, transport.QueueStats{Name: name, Unsettled: -1, Delayed: -1})
			continue
		}
		q, err := in.lookAt(ctx, name)
		if err != nil {
			return nil, err
		}
		stats = append(stats, transport.QueueStats{Name: name, Ready: int64(q.Messages), Unsettled: -1, Delayed: -1})
	}
	return stats, nil
}

// Purge implements [transport.Purger]. The user needs the right to read the queue. If the
// connection ends before the answer, the number leaves out the messages that were removed before.
func (in *inspector) Purge(ctx context.Context, queue string) (int64, error) {
	if _, err := in.lookAt(ctx, queue); err != nil {
		return 0, err
	}
	purged := make(chan int, 1) // the request may outlast ctx
	err := in.onChannel(ctx, func(ch *amqp.Channel) error {
		n, err := ch.QueuePurge(queue, false)
		if err == nil {
			purged <- n
		}
		return wrap(err, "purge queue %q", queue)
	})
	if err != nil {
		return 0, err
	}
	return int64(<-purged), nil
}

// lookAt finds a queue, or fails with ErrNoQueue.
func (c *channels) lookAt(ctx context.Context, name string) (amqp.Queue, error) {
	if len(name) > maxShort {
		return amqp.Queue{}, fmt.Errorf("rabbitmq: queue %.40q...: a name of %d bytes: %w", name, len(name), transport.ErrNoQueue)
	}
	var found amqp.Queue
	err := c.ask(ctx, func(ch *amqp.Channel) (err error) {
		found, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return wrap(err, "look at queue %q", name)
	})
	if err != nil {
		return amqp.Queue{}, err // found may still be written to when ctx has ended
	}
	return found, nil
}

// InspectDelays returns the depth of the queues in which delayed messages wait: of the levels that
// hold some, of [LostQueue], and of the relays of the named queues, where they exist. Ready
// messages of a level are not due there yet. Messages that are being dead-lettered, such as those
// that a full queue refuses, are counted as unsettled: only the management API has their number,
// and without [Transport].Management it is -1. The API's numbers are some seconds old.
func InspectDelays(
	ctx context.Context, conn transport.Conn, queues ...string,
) ([]transport.QueueStats, error) {
	c, err := own(conn)
	if err != nil {
		return nil, err
	}
	names := []string{LostQueue}
	for level := range delays.Levels {
		names = append(names, delayLevel(level))
	}
	for _, queue := range queues {
		names = append(names, queueTarget(queue).relay())
	}
	var stats []transport.QueueStats
	for i, name := range names {
		s, err := c.inspectDelay(ctx, name)
		isRelay := i > delays.Levels
		if isRelay && isCode(err, amqp.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if isRelay || name == LostQueue || s.Ready > 0 || s.Unsettled > 0 {
			stats = append(stats, s)
		}
	}
	return stats, nil
}

func (in *inspector) inspectDelay(ctx context.Context, name string) (transport.QueueStats, error) {
	q, err := in.lookAt(ctx, name)
	s := transport.QueueStats{Name: name, Ready: int64(q.Messages), Unsettled: -1, Delayed: -1}
	if err != nil || in.management == nil {
		return s, err
	}
	managed, err := in.management.queue(ctx, name)
	if err == nil && managed.Messages != nil && managed.Ready != nil {
		s.Unsettled = *managed.Messages - *managed.Ready
	}
	return s, err
}

// DelayedTo returns the queue that a message of [LostQueue] was delayed to; "" when it was not
// delayed.
func DelayedTo(m *transport.Message) string {
	destination := cmp.Or(lastDeath(m).Keys...)
	destination = strings.TrimPrefix(destination[min(delays.Overhead(), len(destination)):], relayedDestination)
	if queue, ok := strings.CutPrefix(destination, queueDestination); ok {
		return queue
	}
	return ""
}

// Satellites implements [transport.Satellites]: it returns the dead-letter queue if that exists.
// Without a delivery limit it may exist too: for queues that were created with one.
func (in *inspector) Satellites(ctx context.Context) ([]transport.Satellite, error) {
	if in.deadLetters.queue == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	_, err := in.lookAt(ctx, in.deadLetters.queue)
	if err == nil {
		return []transport.Satellite{{Queue: in.deadLetters.queue, Concurrency: deadLettersAtOnce, Accepts: true, Handle: deadLettered}}, nil
	}
	if !errors.Is(err, transport.ErrNoQueue) {
		return nil, err
	}
	if in.deadLetters.wanted() && in.queueType == Quorum && in.version.atLeast(release40) {
		in.log.WarnContext(ctx, "the dead-letter queue does not exist, and this broker drops a message after 20 returns, "+
			"unless a policy says otherwise: create it with Install", "queue", in.deadLetters.queue)
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
