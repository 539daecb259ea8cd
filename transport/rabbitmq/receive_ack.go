package rabbitmq

import (
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// ackDelay is how long an acknowledgement waits for others.
	ackDelay = time.Millisecond
	// lateAck is how long one waits for an older delivery that is still being handled. After that
	// it is written in a frame of its own, which costs the broker as much as a frame for many.
	lateAck = 20 * time.Millisecond
)

// acks collects acknowledgements so that one frame acknowledges many, "all up to this tag". That is
// safe only up to the oldest delivery that is unsettled, so acks has all unsettled ones in the
// order of their tags. Guarded by the lock of the channel.
type acks struct {
	settler

	timer  *time.Timer
	armed  bool
	window int

	oldest, newest *delivery // unsettled ones
	open           int       // how many are unsettled
	pending        []ack     // completed and not acknowledged, oldest first

	seen    uint64 // how many tags have been added
	highest uint64 // the highest of them
}

type ack struct {
	of    *delivery
	since time.Time
}

// add adds a delivery. Tags of several consumers may arrive slightly out of order.
func (a *acks) add(d *delivery) {
	a.seen++
	a.highest = max(a.highest, d.tag)
	a.open++
	after := a.newest
	for after != nil && after.tag > d.tag {
		after = after.prev
	}
	d.prev = after
	if after == nil {
		d.next, a.oldest = a.oldest, d
	} else {
		d.next, after.next = after.next, d
	}
	if d.next == nil {
		a.newest = d
	} else {
		d.next.prev = d
	}
}

func (a *acks) remove(d *delivery) {
	a.open--
	if d.prev == nil {
		a.oldest = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next == nil {
		a.newest = d.prev
	} else {
		d.next.prev = d.prev
	}
	d.prev, d.next = nil, nil
}

// complete acknowledges a delivery: now if a large part of the window waits for it, because the
// broker delivers nothing until then, and soon otherwise.
func (a *acks) complete(d *delivery, now time.Time) error {
	a.pending = append(a.pending, ack{d, now})
	if a.worthwhile() {
		return a.sweep(now)
	}
	a.arm(ackDelay)
	return nil
}

// forget undoes complete for a delivery.
func (a *acks) forget(d *delivery) {
	a.pending = slices.DeleteFunc(a.pending, func(p ack) bool { return p.of == d })
}

// worthwhile reports whether a quarter of the window can be acknowledged with one frame. When
// pending acknowledgements crowd the window, any number is worthwhile.
func (a *acks) worthwhile() bool {
	quarter := max(1, a.window/4)
	switch {
	case len(a.pending) < quarter:
		return false
	case a.crowded():
		return true
	}
	safe, below := a.safe(), 0
	for _, p := range a.pending {
		if p.of.tag <= safe {
			below++
		}
	}
	return below >= quarter
}

// crowded reports whether pending acknowledgements leave little of the window for other messages.
func (a *acks) crowded() bool { return len(a.pending) >= max(1, a.window/4*3) }

// due is called when the timer has fired.
func (a *acks) due(now time.Time) error {
	a.armed = false
	return a.sweep(now)
}

// sweep acknowledges as many as it can, and sets the timer for the rest.
func (a *acks) sweep(now time.Time) error {
	err := a.flush(now)
	if err == nil && len(a.pending) > 0 {
		a.arm(a.pending[0].since.Add(lateAck).Sub(now))
	}
	return err
}

func (a *acks) arm(d time.Duration) {
	if !a.armed {
		a.armed = true
		a.timer.Reset(d)
	}
}

// flush acknowledges all pending ones below the oldest unsettled delivery with one frame, and one
// by one those that have waited for it too long, or crowd the window, and all if it is held. After
// an error all are still pending.
func (a *acks) flush(now time.Time) error {
	safe, alone := a.safe(), a.crowded() || a.oldest != nil && a.oldest.held
	late := func(p ack) bool { return alone || now.Sub(p.since) >= lateAck }
	var top uint64
	below := 0
	for _, p := range a.pending {
		switch {
		case p.of.tag <= safe:
			top = max(top, p.of.tag)
			below++
		case late(p):
			if err := a.ack(p.of.tag, false); err != nil {
				return err
			}
		}
	}
	if below > 0 {
		if err := a.ack(top, below > 1); err != nil {
			return err
		}
	}
	a.pending = slices.DeleteFunc(a.pending, func(p ack) bool { return p.of.tag <= safe || late(p) })
	return nil
}

// safe returns the highest tag up to which all deliveries are settled. While a tag is missing, its
// delivery may still arrive, and no tag is known to be safe.
func (a *acks) safe() uint64 {
	switch {
	case a.seen != a.highest:
		return 0
	case a.oldest == nil:
		return a.highest
	default:
		return a.oldest.tag - 1
	}
}

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
