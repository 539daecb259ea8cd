package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/transport"
)

// Install creates what the endpoint needs at its broker, and in the database of its outbox, and
// leaves alone what is there: its queues, the error queues and the audit queue, the tables of the
// outbox and of handled messages, and what its published and handled types need. It opens
// connections of its own; the endpoint need not run.
func (e *Endpoint) Install(ctx context.Context) error {
	needs := layoutOf(e)
	conn, err := connect(ctx, e, nil)
	if err != nil {
		return err
	}
	err = installIn(ctx, e.cfg.Name, conn, needs.plan())
	err = errors.Join(err, conn.Close())
	outbox, oerr := openOutbox(ctx, e, nil)
	if oerr == nil && outbox != nil {
		oerr = errors.Join(installIn(ctx, e.cfg.Name, outbox.Conn, needs.outboxPlan()), outbox.Conn.Close())
	}
	return errors.Join(err, oerr)
}

// installIn creates plan at the broker, or in the database of the outbox, by conn.
func installIn(ctx context.Context, endpoint string, conn transport.Conn, plan transport.Plan) error {
	installer, ok := conn.(transport.Installer)
	if !ok {
		return fmt.Errorf("endpoint %q: install: the transport cannot create queues: create them by other means", endpoint)
	}
	if len(plan.Records) > 0 {
		if _, err := recordsIn(conn); err != nil {
			return fmt.Errorf("endpoint %q: install: %w", endpoint, err)
		}
	}
	if _, ok := conn.(transport.OutboxStore); !ok {
		plan.Queues = slices.DeleteFunc(plan.Queues, func(q transport.Queue) bool { return q.Timers })
	}
	if err := installer.Install(ctx, plan); err != nil {
		return fmt.Errorf("endpoint %q: install: %w", endpoint, err)
	}
	return nil
}

// recordsIn returns the inspector of the database of conn. It returns an error if the database
// cannot store records.
func recordsIn(conn transport.Conn) (transport.StateInspector, error) {
	inspector, ok := conn.(transport.StateInspector)
	if !ok {
		return nil, errors.New("there are handlers with state, and the database cannot store it: use a transport on a SQL database")
	}
	return inspector, nil
}
