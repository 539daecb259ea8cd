package rabbitmq

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/holdfast-go/holdfast/transport"
)

// verifier is the part of a conn that compares queues and exchanges with those of a plan.
type verifier struct {
	*core
	lifter *lifter
}

// Verify implements [transport.Verifier]. It changes nothing, unless a queue or an exchange is
// deleted while it is being compared: that may exist again, unbound. Comparing needs the right to
// configure. Bindings cannot be read over AMQP; Install sets them again. Policies cannot either:
// Verify reads them over [Transport].Management; where that is not set, there is one finding with
// the state [transport.Unread]. The broker reports the policies of a queue some seconds late, and
// Verify waits for the report on a new queue or a new policy that lifts the delivery limit.
func (v *verifier) Verify(ctx context.Context, plan transport.Plan) ([]transport.Finding, error) {
	parts := v.parts(plan)
	findings, err := v.compare(ctx, parts)
	if err != nil {
		return nil, err
	}
	if v.management == nil {
		return append(findings, v.lifter.policiesUnread(parts)), nil
	}
	limited, err := v.lifter.policies(ctx, parts)
	return append(findings, limited...), err
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
