package endpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// outboxSuffix is appended to the endpoint's name for the name of its outbox.
const outboxSuffix = ".outbox"

// outbox is the database in which the messages of handlers are stored, in one commit with what the handlers write. The
// stored messages are a queue of it, from which relays send them to the broker.
type outbox struct {
	conn   transport.Conn
	store  transport.OutboxStore
	queue  string
	inbox  string
	maxRow int  // bytes of one stored message; 0 is no limit
	joins  bool // messages can be stored in a transaction of the caller

	destinations destinations
	backlog      backlog
}

// openOutbox connects to the database of the outbox. It returns nil where none is configured.
func (e *Endpoint) openOutbox(ctx context.Context, shared *transport.Shared) (*outbox, error) {
	if e.cfg.Outbox == nil {
		return nil, nil //nolint:nilnil // no outbox is no error
	}
	conn, err := e.cfg.Outbox.Open(ctx, e.env(shared))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect to the outbox: %w", e.cfg.Name, err)
	}
	store, ok := conn.(transport.OutboxStore)
	if !ok {
		err := fmt.Errorf("endpoint %q: a %T cannot be an outbox: use a transport on a SQL database", e.cfg.Name, e.cfg.Outbox)
		return nil, errors.Join(err, conn.Close())
	}
	_, joins := conn.(transport.TxDispatcher)
	return &outbox{
		conn: conn, store: store, joins: joins, maxRow: conn.Limits().MaxBody,
		queue: e.cfg.Name + outboxSuffix, inbox: e.cfg.Name + inboxSuffix,
	}, nil
}

// now returns the time by the clock that all instances share.
func (o *outbox) now() time.Time {
	if c, ok := o.conn.(transport.Clock); ok {
		return c.Now()
	}
	return time.Now()
}

// env is the environment in which the endpoint opens its transport and its outbox.
func (e *Endpoint) env(shared *transport.Shared) transport.Env {
	return transport.Env{
		Logger: e.cfg.Logger, Endpoint: e.cfg.Name, Instance: e.cfg.Instance, Shared: shared,
		Remember: max(0, e.cfg.Remember),
	}
}

// close closes the connection to the database.
func (o *outbox) close() error {
	if o == nil {
		return nil
	}
	return o.conn.Close()
}

// outboxPlan is what the endpoint needs in the database of its outbox.
func (e *Endpoint) outboxPlan() transport.Plan {
	plan := transport.Plan{Queues: []transport.Queue{{Name: e.cfg.Name + outboxSuffix}}}
	if e.cfg.Remember > 0 && !e.cfg.SendOnly {
		plan.Inboxes = []string{e.cfg.Name + inboxSuffix}
	}
	return plan
}

// prepareOutbox creates the tables of the outbox and the inbox where Config.Install is set, and verifies that they exist.
func (l *live) prepareOutbox(ctx context.Context) error {
	if l.outbox != nil && l.e.cfg.Install {
		if err := l.e.installIn(ctx, l.outbox.conn, l.e.outboxPlan()); err != nil {
			return err
		}
	}
	var err error
	if l.inbox, err = l.newInbox(); err == nil && l.inbox != nil {
		err = l.inbox.verify(ctx)
	}
	if err == nil && l.outbox != nil {
		l.outbox.destinations.conn, l.outbox.destinations.limits = l.conn, l.limits
		err = l.outbox.verify(ctx)
	}
	if l.outbox != nil || l.inbox != nil {
		l.outage = newOutage(ctx, l.e.cfg.Logger, l.probe)
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
	}
	return nil
}

// verify fails where the queue of the outbox is missing.
func (o *outbox) verify(ctx context.Context) error {
	inspector, ok := o.conn.(transport.Inspector)
	if !ok {
		return nil
	}
	_, err := inspector.Inspect(ctx, o.queue)
	if errors.Is(err, transport.ErrNoQueue) {
		err = fmt.Errorf("%w: create it with Config.Install or Endpoint.Install", err)
	}
	if err != nil {
		return fmt.Errorf("outbox %q: %w", o.queue, err)
	}
	return nil
}
