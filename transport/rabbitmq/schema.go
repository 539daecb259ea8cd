package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// topology is the way of published messages to the queues that subscribed to their types. A send
// addresses a queue by its name in any topology.
type topology interface {
	// address returns the exchange and the key that a message of these types is published with.
	address(types []string) (exchange, key string)
	// forQueue returns the exchanges of a queue. forTypes returns those for publishing the first of
	// types, that of the first before all others; the others are its base types.
	forQueue(name string) []part
	forTypes(types []string) []part
	// former returns the exchange of a type in older versions; "" if it has not changed.
	former(name string) string

	subscribe(ch *amqp.Channel, queue, name string) error
	unsubscribe(ch *amqp.Channel, queue, name string) error
}

// schema names the queues and exchanges of a plan, and compares them.
type schema struct {
	channels

	queueType   QueueType
	topology    topology
	deadLetters deadLetters
	management  *management
	vhost       string
	version     version  // of the broker
	checked     sync.Map // the queues whose delivery limit was checked since the connection was opened, by name
}

// declareTypes declares the exchanges for publishing the first of types.
func (c *schema) declareTypes(types []string) func(*amqp.Channel) error {
	if _, key := c.topology.address(types); len(key) > maxShort {
		return func(*amqp.Channel) error {
			return fmt.Errorf("rabbitmq: publish %s: its name and those of its base types take %d bytes, and %d is the most: "+
				"leave out base types, or use the conventional topology", types[0], len(key), maxShort)
		}
	}
	return declareAll(c.topology.forTypes(types))
}

// checkNames fails if one name of a plan would be that of two things: the exchange of a type has
// the name of the exchange of a queue, which would get the events, or an error or audit queue is
// the endpoint's dead-letter queue, whose messages would return to it.
func (c *schema) checkNames(plan transport.Plan) error {
	for _, q := range plan.Queues {
		if c.needsDeadLetters(plan.Queues) && q.Name == c.deadLetters.queue {
			return fmt.Errorf("rabbitmq: queue %q is the endpoint's dead-letter queue and cannot be another queue of it too: "+
				"use another name", q.Name)
		}
	}
	if c.topology != (conventional{}) { // queues have no exchanges
		return nil
	}
	for _, name := range slices.Concat(plan.Types...) {
		exchange := typeExchange(name)
		if slices.ContainsFunc(plan.Queues, func(q transport.Queue) bool { return q.Name == exchange }) {
			return fmt.Errorf("rabbitmq: the exchange of %s is that of the queue %q, which would get its messages: "+
				"use another name for the queue", name, exchange)
		}
	}
	return nil
}

// queuePart returns a queue of a plan without its exchanges.
func (c *schema) queuePart(q transport.Queue) part {
	return part{name: q.Name, args: c.arguments(q), received: c.isQuorum(q) && (c.isBare() || !q.Shared)}
}

// arguments returns the arguments of a queue. Shared queues are declared as NServiceBus declares
// them.
func (c *schema) arguments(q transport.Queue) amqp.Table {
	if !c.isQuorum(q) {
		return nil
	}
	args := amqp.Table{"x-queue-type": string(Quorum)}
	if q.Shared || !c.deadLetters.wanted() {
		return args
	}
	// A negative limit would be none from 4.0, and before drop a message at its first return.
	args["x-delivery-limit"] = c.deadLetters.limit
	args["x-dead-letter-exchange"] = ""
	args["x-dead-letter-routing-key"] = c.deadLetters.queue
	args["x-dead-letter-strategy"] = "at-least-once"
	args["x-overflow"] = "reject-publish" // which that strategy needs
	return args
}

func (c *schema) isQuorum(q transport.Queue) bool { return c.queueType == Quorum || q.Counted }

// isLimited reports whether the delivery limit is that of a queue.
func (c *schema) isLimited(q transport.Queue) bool { return !q.Shared && c.isQuorum(q) }

func (c *schema) needsDeadLetters(queues []transport.Queue) bool {
	return c.deadLetters.wanted() && slices.ContainsFunc(queues, c.isLimited)
}

// isBare reports whether queues are declared with their type alone, as NServiceBus does.
func (c *schema) isBare() bool { return c.deadLetters.limit == 0 }

// needsLifting reports whether the limit of queues that this schema declares has to be lifted.
func (c *schema) needsLifting() bool { return c.isBare() && c.version.atLeast(release40) }

// liftCommand returns the command that creates the policy, for a POSIX shell.
func (c *schema) liftCommand(queue string) string {
	p := liftPolicy(queue)
	return fmt.Sprintf(`rabbitmqctl set_policy --vhost=%s --priority %d --apply-to %s %s %s '{"delivery-limit":%d}'`,
		shellQuoted(c.vhost), p.Priority, p.ApplyTo, shellQuoted(liftName(queue)), shellQuoted(p.Pattern), liftedLimit)
}

// shellQuoted returns a word of a POSIX shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// parts returns all that Install creates for a plan.
func (c *schema) parts(plan transport.Plan) (parts []part) {
	if c.needsDeadLetters(plan.Queues) {
		parts = append(parts, c.deadLetters.part())
	}
	var exchanges []part
	for _, q := range plan.Queues {
		parts = append(parts, c.queuePart(q))
		exchanges = append(exchanges, c.topology.forQueue(q.Name)...)
	}
	for _, types := range plan.Types {
		exchanges = append(exchanges, c.topology.forTypes(types)...)
	}
	for i, p := range exchanges {
		if !slices.ContainsFunc(exchanges[:i], func(q part) bool { return q.name == p.name }) {
			parts = append(parts, p)
		}
	}
	if !plan.Delays {
		return parts
	}
	parts = append(parts, delayParts()...)
	for _, q := range plan.Queues {
		if !q.Shared {
			parts = append(parts, queueTarget(q.Name).relayPart())
		}
	}
	return parts
}

// compare returns the parts that are missing or differ.
func (c *schema) compare(
	ctx context.Context, rest []part,
) (findings []transport.Finding, err error) {
	for len(rest) > 0 {
		if rest, err = c.each(ctx, rest, part.compare); len(rest) == 0 {
			return findings, err
		}
		f, ok := rest[0].finding(err)
		if !ok {
			return nil, err
		}
		if last := len(findings) - 1; last >= 0 && findings[last].Kind == f.Kind && findings[last].Name == f.Name {
			findings[last].Detail += "; " + strings.TrimPrefix(f.Detail, "it exists with ")
		} else {
			findings = append(findings, f)
		}
		if !rest[0].adapt(err) {
			rest = rest[1:]
		}
	}
	return findings, nil
}

// each calls f with the parts until it fails, as a refusal closes the channel. It returns the parts
// from that one on.
func (c *channels) each(
	ctx context.Context, parts []part, f func(part, *amqp.Channel) error,
) ([]part, error) {
	err := c.onChannel(ctx, func(ch *amqp.Channel) error {
		for ; len(parts) > 0; parts = parts[1:] {
			if err := f(parts[0], ch); err != nil {
				return err
			}
		}
		return nil
	})
	if ctx.Err() != nil { // and parts may still be in use
		return nil, err
	}
	return parts, err
}

const (
	defaultDeliveryLimit = 100
	deadLettersSuffix    = ".dead-letters"
	// deadLettersAtOnce is how many dead letters are moved at once. Each waits for the broker to
	// confirm its copy, and one that the error queue refuses must not delay the others.
	deadLettersAtOnce = 8
	// expiredReason is the reason in x-death of a message that was longer in its queue than its
	// time to live.
	expiredReason = "expired"
)

// deadLetters is the dead-letter queue of an endpoint: for messages that returned to one of its own
// quorum queues more often than the delivery limit, which the broker would drop otherwise. The
// endpoint's own attempts end long before.
type deadLetters struct {
	queue string // "" where the endpoint has no name
	limit int    // 0: queues are declared with their type alone
}

func (t *Transport) deadLetters(endpoint string) (deadLetters, error) {
	var d deadLetters
	if endpoint != "" { // otherwise a tool: no endpoint would receive from the queue
		d.queue = endpoint + deadLettersSuffix
	}
	switch {
	case t.DeliveryLimit < None || t.DeliveryLimit > math.MaxInt32:
		return d, fmt.Errorf("rabbitmq: delivery limit %d: use 1 or more, 0 for %d, or None", t.DeliveryLimit, defaultDeliveryLimit)
	case t.DeliveryLimit != None:
		d.limit = cmp.Or(t.DeliveryLimit, defaultDeliveryLimit)
	}
	return d, nil
}

// wanted reports whether queues are to have a dead-letter queue.
func (d deadLetters) wanted() bool { return d.queue != "" && d.limit > 0 }

// part returns the dead-letter queue. It has none itself, and so the highest limit; from 4.0 the
// default limit is 20.
func (d deadLetters) part() part {
	return part{name: d.queue, args: amqp.Table{"x-queue-type": string(Quorum), "x-delivery-limit": math.MaxInt32}}
}

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

// conventional is the topology of fanout exchanges: one for each type, to which its messages are
// published and which is bound to those of its base types, and one for each queue, which a
// subscription binds to that of a type.
type conventional struct{}

// typeExchange returns the exchange of a type as NServiceBus names it: "Namespace:Name". The
// namespace of a nested type, "Namespace.Outer+Name", is that of its outermost type, and the
// arguments of a generic type, "Namespace.Name`1[[...]]", are not part of the name.
func typeExchange(name string) string {
	name, _, _ = strings.Cut(name, "[")
	outermost, _, _ := strings.Cut(name, "+")
	namespace := outermost[:max(0, strings.LastIndexByte(outermost, '.'))]
	if i := strings.LastIndexAny(name, "+"); i >= 0 {
		return namespace + ":" + name[i+1:]
	}
	return namespace + ":" + name[strings.LastIndexByte(name, '.')+1:]
}

// formerExchange returns the exchange of a type as older versions of this package named it, and ""
// where the name is the same.
func formerExchange(name string) string {
	former := name
	plain, _, _ := strings.Cut(name, "[")
	if dot := strings.LastIndexByte(plain, '.'); dot >= 0 {
		former = name[:dot] + ":" + name[dot+1:]
	}
	if former == typeExchange(name) {
		return ""
	}
	return former
}

func (conventional) address(types []string) (exchange, key string) { return typeExchange(types[0]), "" }

func (conventional) former(name string) string { return formerExchange(name) }

func (conventional) forQueue(name string) []part {
	return []part{{name: name, exchange: amqp.ExchangeFanout, bind: bindQueue(name, "", name)}}
}

// forTypes binds the exchanges of base types directly to that of the type: the broker delivers one
// copy to a queue, over however many bindings.
func (conventional) forTypes(types []string) (parts []part) {
	for i, name := range types {
		p := part{name: typeExchange(name), exchange: amqp.ExchangeFanout}
		if i > 0 && name != types[0] {
			p.bind = func(ch *amqp.Channel) error {
				err := ch.ExchangeBind(typeExchange(name), "", typeExchange(types[0]), false, nil)
				return wrap(err, "bind %s to its base type %s", types[0], name)
			}
		}
		parts = append(parts, p)
	}
	return parts
}

func (conventional) subscribe(ch *amqp.Channel, queue, name string) error {
	return ch.ExchangeBind(queue, "", typeExchange(name), false, nil)
}

func (conventional) unsubscribe(ch *amqp.Channel, queue, name string) error {
	return ch.ExchangeUnbind(queue, "", typeExchange(name), false, nil)
}

// direct is the topology of one topic exchange. The routing key of a message has the names of its
// types, the most general first, and a subscription to a type matches the keys with its name in
// them.
type direct struct{ exchange string }

const defaultTopicExchange = "amq.topic"

// word returns the name of a type for a routing key, in which dots are separators.
func word(name string) string { return strings.ReplaceAll(name, ".", "-") }

func (d direct) address(types []string) (exchange, key string) {
	words := make([]string, len(types))
	for i, name := range types {
		words[i] = word(name)
	}
	slices.Reverse(words)
	return d.exchange, strings.Join(words, ".")
}

func (direct) former(string) string { return "" }

// forQueue returns the exchange that subscriptions bind the queue to.
func (d direct) forQueue(string) []part { return d.forTypes(nil) }

func (d direct) forTypes([]string) []part {
	return []part{{name: d.exchange, exchange: amqp.ExchangeTopic}}
}

func (d direct) subscribe(ch *amqp.Channel, queue, name string) error {
	return ch.QueueBind(queue, pattern(name), d.exchange, false, nil)
}

func (d direct) unsubscribe(ch *amqp.Channel, queue, name string) error {
	return ch.QueueUnbind(queue, pattern(name), d.exchange, nil)
}

// pattern returns a binding key that matches a type and the types with that base type. NServiceBus
// binds the whole key of a type instead, for which the base types have to be known.
func pattern(name string) string { return "#." + word(name) + ".#" }
