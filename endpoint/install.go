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
	conn, err := e.open(ctx, nil)
	if err != nil {
		return err
	}
	err = e.installIn(ctx, conn, e.plan())
	err = errors.Join(err, conn.Close())
	outbox, oerr := e.openOutbox(ctx, nil)
	if oerr == nil && outbox != nil {
		oerr = errors.Join(e.installIn(ctx, outbox.Conn, e.outboxPlan()), outbox.Conn.Close())
	}
	return errors.Join(err, oerr)
}

// installIn creates plan at the broker, or in the database of the outbox, that conn is connected
// to.
func (e *Endpoint) installIn(ctx context.Context, conn transport.Conn, plan transport.Plan) error {
	installer, ok := conn.(transport.Installer)
	if !ok {
		return fmt.Errorf("endpoint %q: install: the transport cannot create queues: create them by other means", e.cfg.Name)
	}
	if len(plan.Records) > 0 {
		if _, err := recordsIn(conn); err != nil {
			return fmt.Errorf("endpoint %q: install: %w", e.cfg.Name, err)
		}
	}
	if _, ok := conn.(transport.OutboxStore); !ok {
		plan.Queues = slices.DeleteFunc(plan.Queues, func(q transport.Queue) bool { return q.Timers })
	}
	if err := installer.Install(ctx, plan); err != nil {
		return fmt.Errorf("endpoint %q: install: %w", e.cfg.Name, err)
	}
	return nil
}

// plan is what the endpoint needs at its broker.
func (e *Endpoint) plan() transport.Plan {
	plan := transport.Plan{Delays: true}
	if !e.cfg.SendOnly {
		plan.Queues = []transport.Queue{{Name: e.cfg.Name}}
	}
	for _, queue := range e.givenUpTo() {
		plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Shared: true})
	}
	if !e.cfg.SendOnly {
		if queue := e.quarantineQueue(); queue != "" {
			plan.Queues = append(plan.Queues, transport.Queue{Name: queue, Counted: true})
		}
		if own := e.cfg.instanceQueue(); own != "" {
			plan.Queues = append(plan.Queues, transport.Queue{Name: own})
		}
	}
	if e.cfg.Transactions == SendsAtomicWithReceive {
		plan.Queues = append(plan.Queues, transport.Queue{Name: e.cfg.Name + outboxSuffix, Timers: true})
	}
	if e.cfg.Outbox == nil && e.cfg.Remember > 0 {
		plan.Inboxes = []string{e.cfg.Name + inboxSuffix}
	}
	if e.cfg.Outbox == nil {
		plan.Records = e.records()
	}
	for _, t := range e.types.all {
		if t.kind == kindEvent {
			plan.Types = append(plan.Types, t.types)
		}
	}
	return plan
}

const quarantineSuffix = ".quarantine"

// quarantineQueue returns the name of the endpoint's quarantine, or "".
func (e *Endpoint) quarantineQueue() string {
	if e.cfg.SendOnly || e.cfg.Transactions == None || e.recoverability.Quarantine.After == None {
		return ""
	}
	return e.cfg.Name + quarantineSuffix
}
