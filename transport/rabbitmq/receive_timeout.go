package rabbitmq

import (
	"context"
	"slices"
	"time"
)

// timeout is the broker's treatment of deliveries that are unsettled for long.
type timeout int

const (
	// The zero value: the broker closes the channel and requeues all its messages. That counts for
	// each.
	_ timeout = iota
	// timeoutOfMessage: from 4.3 quorum queues requeue the message without counting it, and cancel
	// the consumer. The driver asks for more time than it needs and requeues the message before:
	// that counts, and the others stay.
	timeoutOfMessage
	// timeoutNever: from 4.3 classic queues wait.
	timeoutNever
)

// consumerTimeout is the argument of a consumer for the broker's timeout.
const consumerTimeout = "x-consumer-timeout"

// maxHold returns how long the broker waits for a message to be settled; 0 is for ever.
func (r *receiver) maxHold() time.Duration {
	if r.timeout == timeoutNever {
		return 0
	}
	return r.of.maxHold
}

// watchTimeouts warns of deliveries that have been unsettled for 80 % of the time allowed, and
// requeues those in time that the broker would requeue without counting.
func (c *channel) watchTimeouts(ctx context.Context, now time.Time) {
	if c.receiver.timeout == timeoutNever {
		return
	}
	conn := c.receiver.of
	for _, d := range c.unsettledLong(now) {
		conn.log.WarnContext(ctx, "a message is held for long: soon the broker requeues it",
			"queue", c.receiver.queue, "message", d.message.ID, "held", now.Sub(d.arrivedAt), "most", conn.maxHold)
	}
}

// unsettledLong returns the deliveries to be warned of. It releases prefetched messages that have
// waited for 70 % of the time after which the broker requeues the messages of the channel. Before
// RabbitMQ 4.3 that counts for these, and not for those in handlers.
func (c *channel) unsettledLong(now time.Time) (warn []*delivery) {
	maxHold := c.receiver.of.maxHold
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(func(_ int, d *delivery) bool { return now.Sub(d.arrivedAt) >= maxHold/10*7 })
	for d := c.acks.oldest; d != nil && now.Sub(d.arrivedAt) >= maxHold/10*8; {
		next := d.next
		if !d.warned {
			d.warned = true
			warn = append(warn, d)
		}
		if c.receiver.timeout == timeoutOfMessage && now.Sub(d.arrivedAt) >= maxHold {
			c.requeueTimedOut(d)
		}
		d = next
	}
	return warn
}

// requeueTimedOut requeues a delivery. One that Receive has returned has used its attempt up.
// Called with mu held.
func (c *channel) requeueTimedOut(d *delivery) {
	c.settled(d, stateTimedOut)
	// When the requeueing fails, the channel is lost and the message is redelivered.
	if !d.receivedAt.IsZero() {
		c.receiver.remember(d, d.completed)
		_ = c.acks.reject(d.tag)
		return
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(w *delivery) bool { return w == d })
	_ = c.acks.requeue(d.tag)
}
