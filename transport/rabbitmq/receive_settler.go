package rabbitmq

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// sentAhead is a number of frames that RabbitMQ certainly passes on to a quorum queue. The
	// broker's limit is 32 (quorum_commands_soft_limit), for all commands of a channel.
	sentAhead = 16
	// appliedWithin is the time in which a quorum queue has applied what RabbitMQ passed on. No
	// answer says when.
	appliedWithin = 500 * time.Millisecond
)

// A settler settles messages on a channel, and knows whether the broker may not have applied the
// settlements yet.
//
// RabbitMQ passes a limited number of settlements on to a quorum queue, and waits until they are in
// the Raft log. Further ones stay in the process of the channel (rabbit_fifo_client.erl, RabbitMQ
// 3.8 to 4.2). If the channel is closed meanwhile, the broker forgets these settlements and
// delivers their messages again.
//
// A settler is guarded by the lock of its channel.
type settler struct {
	ch     amqp.Acknowledger
	frames [sentAhead]time.Time // when the last frames were written; a ring
	next   int                  // the oldest of them
}

func (s *settler) ack(tag uint64, multiple bool) error {
	s.count()
	return s.ch.Ack(tag, multiple)
}

// requeue requeues a message, without its use of an attempt where the broker offers that.
func (s *settler) requeue(tag uint64) error {
	s.count()
	return s.ch.Nack(tag, false, true)
}

// reject requeues a message, with the use of an attempt.
func (s *settler) reject(tag uint64) error {
	s.count()
	return s.ch.Reject(tag, true)
}

func (s *settler) count() {
	s.frames[s.next] = time.Now()
	s.next = (s.next + 1) % sentAhead
}

// unapplied returns how long the channel must stay open so that the broker forgets no settlement.
func (s *settler) unapplied(now time.Time) time.Duration {
	if now.Sub(s.frames[s.next]) >= appliedWithin { // few frames since then, all of which were passed on at once
		return 0
	}
	newest := s.frames[(s.next+sentAhead-1)%sentAhead]
	return max(0, newest.Add(appliedWithin).Sub(now))
}
