package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Delivery = (*delivery)(nil)

// delivery is one hand-out of a message.
type delivery struct {
	message transport.Message
	attempt transport.Attempt
	session *session
	from    *consumer
	tag     uint64
	unnamed bool // its id is made of its content

	// Guarded by the session.
	since      time.Time // when it came
	handed     bool      // to who receives
	taken      time.Time // when it was
	warned     bool      // that it is held for long
	completed  bool      // too late to be acknowledged
	late       bool      // taken back by us before the broker would
	settled    bool
	prev, next *delivery
}

func (d *delivery) Message() *transport.Message { return &d.message }

func (d *delivery) Attempt() transport.Attempt { return d.attempt }

// Complete acknowledges. The acknowledgement leaves at once or, in company, within
// milliseconds; if the connection is lost by then the message comes again.
func (d *delivery) Complete(context.Context) error {
	if d.session.receiver.completesFirst {
		return d.settle(d.acknowledgeFirst)
	}
	err := d.settle(d.acknowledge)
	if err != nil {
		d.session.completedLate(d)
	}
	return err
}

func (d *delivery) acknowledge(a *acks) error { return a.complete(d, time.Now()) }

// acknowledgeFirst is for a message that is handled only then. Where it fails, nothing is done with.
func (d *delivery) acknowledgeFirst(a *acks) error {
	err := d.acknowledge(a)
	if err != nil {
		a.forget(d)
	}
	return err
}

// Retry rejects the message, which counts as an attempt.
func (d *delivery) Retry(context.Context) error {
	return d.settle(func(a *acks) error { return a.ch.Reject(d.tag, true) })
}

// Release gives the message back; before RabbitMQ 4.3 that counts as an attempt too.
func (d *delivery) Release(context.Context) error {
	return d.settle(func(a *acks) error { return a.ch.Nack(d.tag, false, true) })
}

func (d *delivery) settle(verb func(*acks) error) error {
	s := d.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return s.lostError(s.ended)
	case s.ch.IsClosed():
		return s.lostError(transport.ErrLeaseLost)
	case d.late:
		return s.lostError(transport.ErrLeaseLost)
	case d.settled:
		return errSettled
	}
	s.account(d)
	if verb(&s.acks) != nil {
		// The client library fails only when the channel is gone.
		return s.lostError(transport.ErrLeaseLost)
	}
	return nil
}

var errSettled = errors.New("rabbitmq: the delivery is settled already")

const (
	// ackDelay is how long an acknowledgement waits for company.
	ackDelay = time.Millisecond
	// lateAck is how long one waits for an older delivery that is still being handled,
	// after which it leaves alone. That costs the broker as much as many that leave together.
	lateAck = 20 * time.Millisecond
)

// acks collects acknowledgements so that many leave as one, "all up to this tag". That is
// safe only up to the oldest delivery that is still open: acks knows all open ones in
// the order of their tags. Guarded by the session.
type acks struct {
	ch     amqp.Acknowledger
	timer  *time.Timer
	armed  bool
	window int

	oldest, newest *delivery // open ones
	open           int
	pending        []ack // done and not yet acknowledged, oldest first

	seen    uint64 // how many tags have been added
	highest uint64 // the highest of them
}

type ack struct {
	of    *delivery
	since time.Time
}

// add takes note of a delivery. Tags of several consumers may come a little out of order.
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

// complete acknowledges a delivery: now when a good part of the window waits for it, for the
// broker sends no more until then, else soon.
func (a *acks) complete(d *delivery, now time.Time) error {
	a.pending = append(a.pending, ack{d, now})
	if a.worthwhile() {
		return a.sweep(now)
	}
	a.arm(ackDelay)
	return nil
}

// forget takes back what complete has noted of a delivery.
func (a *acks) forget(d *delivery) {
	a.pending = slices.DeleteFunc(a.pending, func(p ack) bool { return p.of == d })
}

// worthwhile tells whether a quarter of the window can be acknowledged with one frame. Where it is crowded, any
// number is.
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

// crowded tells that what waits leaves little of the window for other messages.
func (a *acks) crowded() bool { return len(a.pending) >= max(1, a.window/4*3) }

// due is called when the timer has run out.
func (a *acks) due(now time.Time) error {
	a.armed = false
	return a.sweep(now)
}

// sweep acknowledges what it can, and comes back for the rest.
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

// flush acknowledges all that is done below the oldest open delivery with one frame, and one by
// one what has waited for it too long, or is in the way of others. After an error all are still pending.
func (a *acks) flush(now time.Time) error {
	safe, crowded := a.safe(), a.crowded()
	late := func(p ack) bool { return crowded || now.Sub(p.since) >= lateAck }
	var top uint64
	below := 0
	for _, p := range a.pending {
		switch {
		case p.of.tag <= safe:
			top = max(top, p.of.tag)
			below++
		case late(p):
			if err := a.ch.Ack(p.of.tag, false); err != nil {
				return err
			}
		}
	}
	if below > 0 {
		if err := a.ch.Ack(top, below > 1); err != nil {
			return err
		}
	}
	a.pending = slices.DeleteFunc(a.pending, func(p ack) bool { return p.of.tag <= safe || late(p) })
	return nil
}

// safe is the highest tag up to which nothing is open. While a tag is missing, it may be
// on its way here, and nothing is known to be safe.
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
