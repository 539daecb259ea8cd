package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// refusalLasts is how long the driver remembers that the broker refuses messages to an exchange.
	refusalLasts = 5 * time.Second
	// maxRefusals bounds the memory of refusals.
	maxRefusals = 1000
)

// place returns the part of a route for which the broker checks the right to write: the exchange, and for a publish the
// routing key too, because the rights of a topic exchange may depend on it.
func (r route) place() route {
	if r.mandatory {
		r.key = ""
	}
	return r
}

// accepted has the places for which the broker accepts messages. Reading takes no lock.
type accepted struct {
	places atomic.Pointer[map[route]struct{}]
	mu     sync.Mutex // held while adding
}

func (a *accepted) has(place route) bool {
	places := a.places.Load()
	if places == nil {
		return false
	}
	_, ok := (*places)[place]
	return ok
}

func (a *accepted) add(place route) {
	a.mu.Lock()
	defer a.mu.Unlock()
	places := make(map[route]struct{})
	if was := a.places.Load(); was != nil {
		maps.Copy(places, *was)
	}
	places[place] = struct{}{}
	a.places.Store(&places)
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
	f, ok := r.latest[place]
	if !ok {
		return nil
	}
	if time.Now().After(f.until) {
		delete(r.latest, place)
		return nil
	}
	return f.err
}

// add remembers err if it is a refusal by the broker: of a right, or because the exchange does not exist.
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

// admit fails where the broker refuses messages for the place of a route. It asks the broker once for each channel: a
// refused publish closes its channel, and then the outcome of all messages in flight there is unknown.
func (b *batch) admit(ctx context.Context, to route) error {
	place := to.place()
	if b.sender.accepted.has(place) {
		return nil
	}
	if err := b.to.refusals.of(place); err != nil {
		return err
	}
	if err := b.to.ready(ctx); err != nil {
		return unsent(err)
	}
	p, s, c := b.to, b.sender, b.conn // asking may outlast ctx
	err := p.inTurn(ctx, func() error {
		if s.accepted.has(place) {
			return nil
		}
		if err := p.refusals.of(place); err != nil {
			return err
		}
		probe := func(ch *amqp.Channel) error { return probe(ch, to) }
		err := c.call(ctx, func() error { return withChannel(p.conn, probe) })
		if err != nil {
			p.refusals.add(place, err)
			return err
		}
		s.accepted.add(place)
		return nil
	})
	return unsent(err)
}

// probe fails where the broker refuses messages for a route. It publishes one in a transaction that it rolls back,
// hence no queue gets it. The broker checks rights when it reads the publish, not at the commit.
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
