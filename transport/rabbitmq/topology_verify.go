package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// Verify implements [transport.Verifier]. It changes nothing, unless a queue or an exchange is deleted while it is being
// compared: that may exist again, unbound. Comparing needs the right to configure. Bindings cannot be read over AMQP;
// Install sets them again. Policies cannot either: Verify reads them over [Transport].Management; where that is not set,
// there is one finding with the state [transport.Unread].
func (c *conn) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	parts := c.parts(plan)
	findings, err := c.compare(ctx, parts)
	if err != nil {
		return nil, err
	}
	limited, err := c.policies(ctx, parts)
	return append(findings, limited...), err
}

// compare returns the parts that are missing or differ.
func (c *conn) compare(ctx context.Context, rest []part) ([]transport.Finding, error) {
	var findings []transport.Finding
	for len(rest) > 0 {
		// A refusal closes the channel, so there is a new one after each.
		err := c.onChannel(ctx, func(ch *amqp.Channel) error {
			for ; len(rest) > 0; rest = rest[1:] {
				if err := rest[0].compare(ch); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			break
		}
		if ctx.Err() != nil { // and rest may still be in use
			return nil, err
		}
		f, ok := rest[0].finding(err)
		if !ok {
			return nil, err
		}
		findings = add(findings, f)
		if !rest[0].adapt(err) {
			rest = rest[1:]
		}
	}
	return findings, nil
}

// InstallDelays creates the queues and exchanges for delayed messages that are missing, and binds them, on a connection
// that a [Transport] has opened. Install does that only where the last of them is missing. Those that exist with other
// arguments are not changed.
func InstallDelays(ctx context.Context, conn transport.Conn) error {
	c, err := own(conn)
	if err != nil {
		return err
	}
	err = c.onChannel(ctx, declareDelays)
	if !isCode(err, amqp.PreconditionFailed) {
		return err
	}
	below := delayArrivals
	for level := range delays.Levels {
		err := c.onChannel(ctx, func(ch *amqp.Channel) error { return declareDelayLevel(ch, level, below) })
		if err != nil && !isCode(err, amqp.PreconditionFailed) {
			return err
		}
		below = delayLevel(level)
	}
	for _, declare := range []func(*amqp.Channel) error{declareDelaySink, declareDelayDeliveries} {
		if err := c.onChannel(ctx, declare); err != nil && !isCode(err, amqp.PreconditionFailed) {
			return err
		}
	}
	return nil
}

func own(c transport.Conn) (*conn, error) {
	if c, ok := c.(*conn); ok {
		return c, nil
	}
	return nil, errors.New("rabbitmq: the connection is one of another transport")
}

// part is a queue or an exchange of a plan.
type part struct {
	name     string
	exchange string // its type; "" is a queue
	args     amqp.Table
	adapted  []string // names of args
}

// parts returns all that Install creates for a plan.
func (c *conn) parts(plan transport.Plan) []part {
	parts := c.deadLetterParts(plan.Queues)
	for _, q := range plan.Queues {
		parts = append(parts, part{name: q.Name, args: c.arguments(q)})
	}
	parts = append(parts, c.topology.parts(plan)...)
	if plan.Delays {
		parts = append(parts, delayParts()...)
		for _, q := range plan.Queues {
			if isDelayedTo(q) {
				parts = append(parts, part{name: queueTarget(q.Name).relay(), args: relayArguments})
			}
		}
	}
	return parts
}

func (c *conn) deadLetterParts(queues []transport.Queue) []part {
	own := func(q transport.Queue) bool { return !q.Shared && c.isQuorum(q) }
	if c.deadLetters.queue == "" || !slices.ContainsFunc(queues, own) {
		return nil
	}
	args := amqp.Table{"x-queue-type": string(Quorum), "x-delivery-limit": math.MaxInt32}
	return []part{{name: c.deadLetters.queue, args: args}}
}

func delayParts() []part {
	parts := []part{
		{name: delayLost, exchange: amqp.ExchangeFanout},
		{name: delayLost, args: amqp.Table{"x-queue-type": string(Quorum)}},
		{name: delayArrivals, exchange: amqp.ExchangeTopic, args: lostArguments},
		{name: delaySink, args: sinkArguments},
		{name: delayDeliveries, exchange: amqp.ExchangeTopic, args: lostArguments},
	}
	below := delayArrivals
	for level := range delays.Levels {
		name := delayLevel(level)
		parts = append(parts, part{name: name, exchange: amqp.ExchangeTopic}, part{name: name, args: amqp.Table{
			"x-queue-type":           string(Quorum),
			"x-message-ttl":          delays.Wait(level).Milliseconds(),
			"x-dead-letter-exchange": below,
			"x-dead-letter-strategy": "at-least-once",
			"x-overflow":             "reject-publish",
		}})
		below = name
	}
	return parts
}

// compare fails when the part is missing or differs. A passive declaration only finds it. An active declaration of a part
// that exists changes nothing, and is refused when the part differs.
func (p part) compare(ch *amqp.Channel) error {
	if p.exchange != "" {
		if err := ch.ExchangeDeclarePassive(p.name, p.exchange, true, false, false, false, nil); err != nil {
			return wrap(err, "look at exchange %q", p.name)
		}
		return wrap(ch.ExchangeDeclare(p.name, p.exchange, true, false, false, false, p.args), "compare exchange %q", p.name)
	}
	if _, err := ch.QueueDeclarePassive(p.name, true, false, false, false, nil); err != nil {
		return wrap(err, "look at queue %q", p.name)
	}
	_, err := ch.QueueDeclare(p.name, true, false, false, false, p.args)
	return wrap(err, "compare queue %q", p.name)
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
		f.State, f.Detail = transport.Unknown, fmt.Sprintf("it is there, and cannot be compared: %v", plain(err))
	default:
		return f, false
	}
	return f, true
}

// add appends a finding, or adds it to the last one where that is of the same part.
func add(findings []transport.Finding, f transport.Finding) []transport.Finding {
	if n := len(findings); n > 0 && findings[n-1].Kind == f.Kind && findings[n-1].Name == f.Name {
		findings[n-1].Detail += "; " + strings.TrimPrefix(f.Detail, "it exists with ")
		return findings
	}
	return append(findings, f)
}

// adapt copies the argument that differs from the broker, so that the next comparison finds the next one: the broker
// names one at a time. It returns false when there is no more to find.
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
