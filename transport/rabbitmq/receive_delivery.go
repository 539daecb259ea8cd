package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// delivery is one delivery of a message.
type delivery struct {
	message transport.Message
	attempt transport.Attempt
	channel *channel
	from    *consumer
	tag     uint64
	unnamed bool // its id is made of its content

	// The fields below are guarded by channel.mu.

	arrivedAt  time.Time
	receivedAt time.Time // when Receive returned it; zero while it is prefetched
	warned     bool      // that it is unsettled for long
	held       bool      // by Hold
	completed  bool      // too late to be acknowledged
	state      settlement
	prev, next *delivery
}

// settlement is the state of a delivery.
type settlement int

const (
	stateUnsettled settlement = iota
	stateSettled
	stateTimedOut // requeued by the driver before the broker would
)

var errSettled = errors.New("rabbitmq: the delivery is settled already")

var (
	_ transport.Holder       = (*delivery)(nil)
	_ transport.LossDetector = (*delivery)(nil)
)

func (d *delivery) Message() *transport.Message { return &d.message }

func (d *delivery) Attempt() transport.Attempt { return d.attempt }

// Complete acknowledges the message. The acknowledgement is written at once, or with others within
// milliseconds; if the connection is lost by then, the message is redelivered.
func (d *delivery) Complete(context.Context) error {
	first := d.channel.receiver.completesFirst
	err := d.settle(func(a *acks) error {
		err := d.acknowledge(a)
		if first && err != nil { // and the message is not handled
			a.forget(d)
		}
		return err
	})
	if err != nil && !first {
		d.channel.completedLate(d)
	}
	return err
}

func (d *delivery) acknowledge(a *acks) error { return a.complete(d, time.Now()) }

// Retry rejects the message, which counts as an attempt.
func (d *delivery) Retry(context.Context) error {
	return d.settle(func(a *acks) error { return a.reject(d.tag) })
}

// Release requeues the message; before RabbitMQ 4.3 that counts as an attempt too.
func (d *delivery) Release(context.Context) error {
	return d.settle(func(a *acks) error { return a.requeue(d.tag) })
}

// Hold implements [transport.Holder]. The broker counts the message against the prefetch of its
// consumer, so the channel prefetches others in the place of held ones.
func (d *delivery) Hold() (until time.Time) {
	c := d.channel
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil && d.state == stateUnsettled && !d.held {
		c.hold(d)
	}
	if most := c.receiver.maxHold(); most > 0 {
		until = d.arrivedAt.Add(most)
	}
	return until
}

// Lost implements [transport.LossDetector].
func (d *delivery) Lost() bool {
	c := d.channel
	c.mu.Lock()
	defer c.mu.Unlock()
	return d.state == stateTimedOut || d.state == stateUnsettled && (c.ended != nil || c.ch.IsClosed())
}

func (d *delivery) settle(act func(*acks) error) error {
	c := d.channel
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended != nil:
		return settleError(c, c.ended)
	case c.ch.IsClosed(), d.state == stateTimedOut:
		return settleError(c, transport.ErrLeaseLost)
	case d.state == stateSettled:
		return errSettled
	}
	c.settled(d, stateSettled)
	if act(&c.acks) != nil {
		// The client library fails only when the channel is closed.
		return settleError(c, transport.ErrLeaseLost)
	}
	return nil
}

func settleError(c *channel, err error) error {
	return fmt.Errorf("rabbitmq: settle a message of %q: %w", c.receiver.queue, err)
}
