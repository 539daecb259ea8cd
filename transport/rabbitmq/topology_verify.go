package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// Verify implements [transport.Verifier]. It changes nothing, unless a queue or an exchange is
// deleted while it is being compared: that may exist again, unbound. Comparing needs the right to
// configure. Bindings cannot be read over AMQP; Install sets them again. Policies cannot either:
// Verify reads them over [Transport].Management; where that is not set, there is one finding with
// the state [transport.Unread]. The broker reports the policies of a queue some seconds late, and
// Verify waits for the report on a new queue or a new policy that lifts the delivery limit.
func (c *schema) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	parts := c.parts(plan)
	findings, err := c.compare(ctx, parts)
	if err != nil {
		return nil, err
	}
	if c.management == nil {
		return append(findings, c.policiesUnread(parts)), nil
	}
	limited, err := c.policies(ctx, parts)
	return append(findings, limited...), err
}

// each calls f with the parts until it fails, as a refusal closes the channel. It returns the parts
// from that one on.
func (c *channels) each(ctx context.Context, parts []part, f func(part, *amqp.Channel) error) ([]part, error) {
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

// compare returns the parts that are missing or differ.
func (c *schema) compare(ctx context.Context, rest []part) (findings []transport.Finding, err error) {
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

// InstallDelays creates the queues and exchanges for delayed messages that are missing, and binds
// them, on a connection that a [Transport] has opened. Install does that only where the last of
// them is missing. Those that exist with other arguments are not changed.
func InstallDelays(ctx context.Context, conn transport.Conn) error {
	c, err := own(conn)
	if err != nil {
		return err
	}
	for rest := delayParts(); len(rest) > 0; {
		rest, err = c.each(ctx, rest, part.declare)
		if len(rest) > 0 && isCode(err, amqp.PreconditionFailed) {
			rest = rest[1:]
		} else if err != nil {
			return advised(err)
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
