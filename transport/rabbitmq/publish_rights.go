package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// refusalLasts is how long the driver remembers that the broker refuses messages to an
	// exchange.
	refusalLasts = 5 * time.Second
	// maxRefusals bounds the memory of refusals.
	maxRefusals = 1000
)

// place returns the part of a route for which the broker checks the right to write: the exchange,
// and for a publish the routing key too, because the rights of a topic exchange may depend on it.
func (r route) place() route {
	if r.mandatory {
		r.key = ""
	}
	return r
}

// refusals has the places for which the broker has refused messages lately.
type refusals struct {
	mu     sync.Mutex // guards latest
	latest map[route]refusal
}

type refusal struct {
	err   error
	until time.Time
}

func (r *refusals) of(place route) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.latest[place]
	if time.Now().After(f.until) {
		delete(r.latest, place)
		return nil
	}
	return f.err
}

// add remembers err if it is a refusal by the broker: of a right, or because the exchange does not
// exist.
func (r *refusals) add(place route, err error) {
	if !isCode(err, amqp.AccessRefused) && !isCode(err, amqp.NotFound) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.latest) >= maxRefusals {
		maps.DeleteFunc(r.latest, func(_ route, f refusal) bool { return now.After(f.until) })
	}
	if r.latest == nil || len(r.latest) >= maxRefusals {
		r.latest = make(map[route]refusal)
	}
	r.latest[place] = refusal{err, now.Add(refusalLasts)}
}

// once has f ask the broker for something about a place, in turn, unless done reports that another
// call has, or the broker has just refused it.
func (p *publisher) once(ctx context.Context, place route, done func() bool, f func() error) error {
	if err := p.refusals.of(place); err != nil {
		return err
	}
	return p.inTurn(ctx, func() error {
		if done() {
			return nil
		}
		if err := p.refusals.of(place); err != nil {
			return err
		}
		err := f()
		p.refusals.add(place, err)
		return err
	})
}

// admit fails where the broker refuses messages for the place of a route. It asks the broker once
// for each channel: a refused publish closes its channel, and then the outcome of all messages in
// flight there is unknown.
func (b *batch) admit(ctx context.Context, to route) error {
	p, s := b.to, b.sender
	place := to.place()
	if s.accepted.has(place) {
		return nil
	}
	err := p.refusals.of(place)
	if err == nil {
		err = p.ready(ctx)
	}
	if err != nil {
		return unsent(err)
	}
	return unsent(p.once(ctx, place, func() bool { return s.accepted.has(place) }, func() error {
		probe := func(ch *amqp.Channel) error { return probe(ch, to) }
		err := b.by.call(ctx, func() error { return withChannel(p.brokerConn, probe) }) // which may outlast ctx
		if err == nil {
			s.accepted.set(place, struct{}{})
		}
		return err
	}))
}

// probe fails where the broker refuses messages for a route. It publishes one in a transaction that
// it rolls back, hence no queue gets it. The broker checks rights when it reads the publish, not at
// the commit.
func probe(ch *amqp.Channel, to route) error {
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err := ch.Tx()
	if err == nil {
		err = ch.Publish(to.exchange, to.key, false, false, amqp.Publishing{})
	}
	if err == nil {
		err = ch.TxRollback()
	}
	if err == nil {
		return nil
	}
	var e *amqp.Error
	if errors.As(err, &e) && !e.Server && ch.IsClosed() {
		// The refusal arrived before the last call, whose error is only that the channel is closed.
		if cause := <-closed; cause != nil {
			err = cause
		}
	}
	exchange := cmp.Or(to.exchange, "amq.default")
	err = wrap(err, "publish to exchange %q", exchange)
	switch {
	case isCode(err, amqp.AccessRefused):
		return fmt.Errorf("%w: give the user the right to write to %q; the broker is asked again within %v",
			err, exchange, refusalLasts)
	case isCode(err, amqp.NotFound):
		return fmt.Errorf("%w: have it created by Install; the broker is asked again within %v", err, refusalLasts)
	default:
		return err
	}
}

// ensureType declares the exchanges of types, which are published to a place, unless this sender
// has done so, or the broker has just refused to.
func (b *batch) ensureType(ctx context.Context, place route, types []string) error {
	s := b.sender
	if s.hasDeclared(types) {
		return nil
	}
	types = slices.Clone(types) // declaring may outlast ctx
	return b.to.once(ctx, place, func() bool { return s.hasDeclared(types) }, func() error {
		err := b.by.exchanges.ensureTypes(ctx, types)
		if err == nil {
			s.declared.set(types[0], types)
		}
		return err
	})
}

func (s *sender) hasDeclared(types []string) bool {
	declared, _ := s.declared.get(types[0])
	return slices.Equal(declared, types)
}
