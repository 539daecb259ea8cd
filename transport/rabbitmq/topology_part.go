package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// part is a queue or an exchange, durable, with its bindings.
type part struct {
	name     string
	exchange string // its type; "" is a queue
	args     amqp.Table
	bind     func(ch *amqp.Channel) error // nil for none
	adapted  []string                     // names of args
	received bool                         // it is a quorum queue of a plan, to which messages return
}

// find fails when the part does not exist.
func (p part) find(ch *amqp.Channel) error {
	if p.exchange != "" {
		err := ch.ExchangeDeclarePassive(p.name, p.exchange, true, false, false, false, nil)
		return wrap(err, "look at exchange %q", p.name)
	}
	_, err := ch.QueueDeclarePassive(p.name, true, false, false, false, nil)
	return wrap(err, "look at queue %q", p.name)
}

// create declares the part without its bindings. A part that exists is not changed; a different one
// is refused.
func (p part) create(ch *amqp.Channel) error {
	switch {
	case p.exchange != "" && strings.HasPrefix(p.name, "amq."): // it exists on every broker
		return p.find(ch)
	case p.exchange != "":
		err := ch.ExchangeDeclare(p.name, p.exchange, true, false, false, false, p.args)
		return wrap(err, "declare exchange %q", p.name)
	}
	_, err := ch.QueueDeclare(p.name, true, false, false, false, p.args)
	return wrap(err, "declare queue %q", p.name)
}

// declare creates the part and its bindings.
func (p part) declare(ch *amqp.Channel) error {
	if err := p.create(ch); err != nil || p.bind == nil {
		return err
	}
	return p.bind(ch)
}

// declareAll returns a function that declares parts in order.
func declareAll(parts []part) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		for _, p := range parts {
			if err := p.declare(ch); err != nil {
				return err
			}
		}
		return nil
	}
}

func bindQueue(queue, key, exchange string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		return wrap(ch.QueueBind(queue, key, exchange, false, nil), "bind queue %q to exchange %q", queue, exchange)
	}
}

// compare fails when the part is missing or differs.
func (p part) compare(ch *amqp.Channel) error {
	if err := p.find(ch); err != nil {
		return err
	}
	return p.create(ch)
}

// finding returns the finding of a failed comparison; not ok when the error is not about the part.
func (p part) finding(err error) (f transport.Finding, ok bool) {
	f = transport.Finding{Kind: "queue", Name: p.name}
	if p.exchange != "" {
		f.Kind = "exchange"
	}
	switch {
	case isCode(err, amqp.NotFound):
		f.State = transport.Missing
	case isCode(err, amqp.PreconditionFailed):
		f.State, f.Detail = transport.Differs, plain(err).Error()
	case isCode(err, amqp.AccessRefused):
		f.State, f.Detail = transport.Unknown, fmt.Sprintf("it exists, and cannot be compared: %v", plain(err))
	default:
		return f, false
	}
	return f, true
}

// adapt copies the argument that differs from the broker, so that the next comparison finds the
// next one: the broker names one at a time. It returns false when there is no more to find.
func (p *part) adapt(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return false
	}
	said := inequivalent.FindStringSubmatch(e.Reason)
	if said == nil || !strings.HasPrefix(said[1], "x-") || slices.Contains(p.adapted, said[1]) {
		return false
	}
	name, args := said[1], make(amqp.Table, len(p.args)+1)
	maps.Copy(args, p.args) // the map may be shared
	p.adapted = append(p.adapted, name)
	delete(args, name)
	if is := argument.FindStringSubmatch(said[3]); is != nil {
		n, err := strconv.ParseInt(is[1], 10, 64)
		if is[2] == "longstr" || err != nil {
			args[name] = is[1]
		} else {
			args[name] = n
		}
	}
	p.args = args
	return name != "x-queue-type" // other arguments than those of its type would be refused
}

var argument = regexp.MustCompile(`^(?:the value )?'(.*?)'(?: of type '?(\w+)'?)?$`)
