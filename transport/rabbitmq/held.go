package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// hold is what becomes of deliveries that are not settled for long.
type hold int

const (
	// heldByChannel: the broker closes the channel, and hands all of its messages out again. Each counts.
	heldByChannel hold = iota
	// heldByConsumer: from 4.3 quorum queues take the message back without counting it, and cancel the consumer. We
	// ask for more time than we need and return the message before: it counts, and the others stay.
	heldByConsumer
	// heldForever: from 4.3 classic queues wait.
	heldForever
)

func (v version) holds() hold {
	if v.atLeast(release43) {
		return heldByConsumer // until the queue turns out to be a classic one
	}
	return heldByChannel
}

// consumerTimeout is the argument of a consumer for it.
const consumerTimeout = "x-consumer-timeout"

// consumeArguments are what a consumer is started with.
func (r *receiver) consumeArguments() amqp.Table {
	if r.hold != heldByConsumer {
		return nil
	}
	return amqp.Table{consumerTimeout: (r.conn.maxHold + r.conn.maxHold/4).Milliseconds()}
}

// learn takes note of a consumer's refusal: a classic queue knows no such time.
func (r *receiver) learn(refusal error) {
	var e *amqp.Error
	if errors.As(refusal, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, consumerTimeout) {
		r.hold = heldForever
	}
}

// watchHolds tells of deliveries that have been held for 80 % of the time that they may be, and gives
// back in time what the broker would take without counting.
func (s *session) watchHolds(ctx context.Context, now time.Time) {
	if s.receiver.hold == heldForever {
		return
	}
	s.releaseLate(now)
	c := s.receiver.conn
	for _, d := range s.heldLong(now) {
		c.log.WarnContext(ctx, "a message is held for long: soon the broker takes it back",
			"queue", s.receiver.queue, "message", d.message.ID, "held", now.Sub(d.since), "most", c.maxHold)
	}
}

// releaseLate returns prefetched messages to the queue that have waited for 70 % of the time after which the broker
// takes the messages of the channel back. Before RabbitMQ 4.3 that counts for these, and not for those in handlers.
func (s *session) releaseLate(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(func(_ int, d *delivery) bool { return now.Sub(d.since) >= s.receiver.conn.maxHold/10*7 })
}

// heldLong are those that are to be warned of.
func (s *session) heldLong(now time.Time) (warn []*delivery) {
	most, hold := s.receiver.conn.maxHold, s.receiver.hold
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := s.acks.oldest; d != nil && now.Sub(d.since) >= most/10*8; {
		next := d.next
		if !d.warned {
			d.warned = true
			warn = append(warn, d)
		}
		if hold == heldByConsumer && now.Sub(d.since) >= most {
			s.takeBack(d)
		}
		d = next
	}
	return warn
}

// takeBack returns a delivery. One that was handed out has used its attempt up.
func (s *session) takeBack(d *delivery) {
	d.late = true
	s.account(d)
	// One that cannot be returned comes back with the loss of the channel.
	if d.handed {
		s.receiver.lost(d, d.completed)
		_ = s.ch.Reject(d.tag, true)
		return
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(w *delivery) bool { return w == d })
	_ = s.ch.Nack(d.tag, false, true)
}
