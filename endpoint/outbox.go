package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// outboxSuffix is appended to the endpoint's name for the name of its outbox.
const outboxSuffix = ".outbox"

// inboxSuffix is appended to the endpoint's name for the name of its inbox.
const inboxSuffix = ".handled"

// openOutbox connects to the database of the outbox. It returns nil where none is configured.
func (e *Endpoint) openOutbox(ctx context.Context, shared *transport.Shared) (*outbox.Outbox, error) {
	if e.cfg.Outbox == nil {
		return nil, nil //nolint:nilnil // no outbox is no error
	}
	conn, err := e.cfg.Outbox.Open(ctx, e.env(shared))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: connect to the outbox: %w", e.cfg.Name, err)
	}
	o, ok := outbox.New(conn, e.cfg.Name+outboxSuffix, e.cfg.Name+inboxSuffix)
	if !ok {
		err := fmt.Errorf("endpoint %q: a %T cannot be an outbox: use a transport on a SQL database", e.cfg.Name, e.cfg.Outbox)
		return nil, errors.Join(err, conn.Close())
	}
	return o, nil
}

// env is the environment in which the endpoint opens its transport and its outbox.
func (e *Endpoint) env(shared *transport.Shared) transport.Env {
	return transport.Env{
		Logger: e.cfg.Logger, Endpoint: e.cfg.Name, Instance: e.cfg.Instance, Shared: shared,
		Remember: max(0, e.cfg.Remember),
	}
}

// outboxPlan is what the endpoint needs in the database of its outbox.
func (e *Endpoint) outboxPlan() transport.Plan {
	plan := transport.Plan{Queues: []transport.Queue{{Name: e.cfg.Name + outboxSuffix, Timers: true}}, Records: e.records()}
	if e.cfg.Remember > 0 && !e.cfg.SendOnly {
		plan.Inboxes = []string{e.cfg.Name + inboxSuffix}
	}
	return plan
}

// prepareOutbox creates the tables of the outbox and the inbox where Config.Install is set, and
// verifies that they exist.
func (l *live) prepareOutbox(ctx context.Context) error {
	if l.Outbox != nil && l.e.cfg.Install {
		if err := l.e.installIn(ctx, l.Outbox.Conn, l.e.outboxPlan()); err != nil {
			return err
		}
	}
	var err error
	l.Inbox, err = l.newInbox()
	switch {
	case err != nil:
	case l.Outbox != nil:
		l.Outbox.SendTo(l.conn)
		plan := l.e.outboxPlan()
		plan.Queues[0].Timers = false // a table of the version before is used, and refuses timers
		plan.Records = nil            // see verifyRecords
		err = l.verifyTables(ctx, l.Outbox.Conn, plan)
	case l.Inbox != nil:
		err = l.verifyTables(ctx, l.conn, transport.Plan{Inboxes: []string{l.Inbox.Name}})
	}
	if err == nil && l.Inbox != nil {
		if err = l.Inbox.Verify(ctx); err != nil {
			err = fmt.Errorf("inbox %q: %w", l.Inbox.Name, work.WithAdvice(err))
		}
	}
	if err == nil {
		err = l.openTimers(ctx)
	}
	if l.Outbox != nil || l.Inbox != nil {
		l.Outage = newOutage(ctx, l)
		if l.Outbox != nil {
			l.Outbox.OnCommit = l.Outage.Committed
		}
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
	}
	return nil
}

// newInbox returns the inbox of an endpoint that keeps one; nil of any other.
func (l *live) newInbox() (*inbox.Inbox, error) {
	b := &inbox.Inbox{
		Name: l.e.cfg.Name + inboxSuffix, Queue: l.names.Of(l.e.cfg.Name),
		Log: l.e.cfg.Logger, Translates: l.Translate != nil,
	}
	switch {
	case l.e.cfg.Remember <= 0 || l.e.cfg.SendOnly:
		return nil, nil //nolint:nilnil // no inbox is no error
	case l.Outbox != nil:
		b.Store = l.Outbox.Store
		return b, nil
	}
	store, ok := l.conn.(transport.OutboxStore)
	if !ok {
		return nil, errors.New("the transport cannot record handled messages: leave Config.Remember out")
	}
	b.Store = store
	return b, nil
}

// inboxTimeout bounds the inspection of an inbox, which may have many rows.
const inboxTimeout = time.Minute

// reportStart logs the size of the inbox, and a leftover outbox, beside the start of the endpoint.
// The result waits for that.
func (l *live) reportStart(ctx context.Context) (end func()) {
	ctx, cancel := context.WithTimeout(ctx, inboxTimeout)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		if l.Inbox != nil {
			l.Inbox.Report(ctx, l.e.cfg.Remember)
		}
		l.reportLeftover(ctx)
	})
	return func() {
		cancel()
		reporting.Wait()
	}
}

// reportLeftover warns of messages in an outbox that the endpoint no longer has, and has no timers
// in: nothing sends them.
func (l *live) reportLeftover(ctx context.Context) {
	inspector, ok := l.conn.(transport.Inspector)
	if _, stores := l.conn.(transport.OutboxStore); !ok || !stores || l.Timers != nil { // whose relay sends what is in the queue
		return
	}
	name := l.e.cfg.Name + outboxSuffix
	stats, err := inspector.Inspect(ctx, name)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
	case err != nil:
		l.e.cfg.Logger.DebugContext(ctx, "an earlier outbox could not be looked for", slog.Any("error", err))
	case len(stats) == 1 && stats[0].Ready+max(0, stats[0].Unsettled)+max(0, stats[0].Delayed) > 0:
		l.e.cfg.Logger.WarnContext(ctx, "messages wait in the outbox of this endpoint, which has none now: nothing sends them. "+
			"Send them by holdfast outbox drain, or set Config.Outbox",
			slog.String("outbox", name), slog.Int64("messages", stats[0].Ready))
	}
}

// openRelay opens the relay of the outbox, or of the timers.
func (l *live) openRelay(ctx context.Context) (*outbox.Relay, error) {
	cfg := &l.e.cfg
	return outbox.OpenRelay(ctx, outbox.RelayConfig{
		Outbox: l.Timers, Conn: l.conn, Log: cfg.Logger, Notifier: l.Notifier, Refusals: &l.Auditor.Refusals,
		Queue: l.names.Of(cfg.Name), AuditQueue: l.names.Of(cfg.AuditQueue),
		RefusedFor: cfg.OutboxRefusedFor, StopTimeout: cfg.StopTimeout, InOrder: cfg.Concurrency == 1,
		Settling: l.Settler.Context, Send: l.sendStored,
		Unsent: func(queue string, err error) error { return &unsentError{queue, err} },
	})
}

// sendStored sends operations of the outbox through the Relay stage.
func (l *live) sendStored(ctx context.Context, ops []transport.Operation) error {
	if l.e.watchesRelay {
		defer l.awaited(ctx, nameRelay)()
	}
	return l.e.relayed(ctx, &pipeline.Relay{Operations: ops})
}

// relayAll is the end of the Relay stage.
func (e *Endpoint) relayAll(ctx context.Context, relayed *pipeline.Relay) error {
	live := e.live.Load()
	if live == nil { // a behavior has kept next
		return ErrNotRunning
	}
	_, err := live.conn.Dispatch(ctx, relayed.Operations)
	return err
}

// unsentError is the failure of a message that the broker refused after it was stored.
type unsentError struct {
	queue string
	err   error
}

func (e *unsentError) Error() string {
	if e.queue == "" {
		return fmt.Sprintf("the message was stored in the outbox, and could not be published: %v", e.err)
	}
	return fmt.Sprintf("the message was stored in the outbox, and could not be sent to queue %q: %v", e.queue, e.err)
}

func (e *unsentError) Unwrap() error { return e.err }

// FaultClass returns the class of the fault in the error queue.
func (e *unsentError) FaultClass() string { return "undeliverable" }
