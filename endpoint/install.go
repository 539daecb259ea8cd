package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/transport"
)

// Install creates what the endpoint needs at its broker and leaves alone what is there: its
// queues, the error queues and the audit queue, and what its published and handled types need. It opens
// a connection of its own; the endpoint need not run.
func (e *Endpoint) Install(ctx context.Context) error {
	conn, err := e.open(ctx, nil)
	if err != nil {
		return err
	}
	err = e.install(ctx, conn)
	return errors.Join(err, conn.Close())
}

func (e *Endpoint) install(ctx context.Context, conn transport.Conn) error {
	installer, ok := conn.(transport.Installer)
	if !ok {
		return fmt.Errorf("endpoint %q: install: the transport cannot create queues: create them by other means", e.cfg.Name)
	}
	if err := installer.Install(ctx, e.plan()); err != nil {
		return fmt.Errorf("endpoint %q: install: %w", e.cfg.Name, err)
	}
	return nil
}

// plan is what the endpoint needs at its broker.
func (e *Endpoint) plan() transport.Plan {
	plan := transport.Plan{Delays: true}
	if !e.cfg.SendOnly {
		plan.Queues = []transport.Queue{{Name: e.cfg.Name}}
		for _, queue := range e.givenUpTo() {
			plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Shared: true})
		}
		if queue := e.quarantineQueue(); queue != "" {
			plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Counted: true})
		}
		if own := e.cfg.instanceQueue(); own != "" {
			plan.Queues = append(plan.Queues, transport.Queue{Name: own})
		}
	}
	for _, t := range e.types.all {
		if t.kind == kindEvent {
			plan.Types = append(plan.Types, t.types)
		}
	}
	return plan
}
