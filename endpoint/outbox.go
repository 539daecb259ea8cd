package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/inbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
)

// prepareOutbox verifies the tables of the outbox and the inbox.
func (l *launch) prepareOutbox(ctx context.Context) (err error) {
	l.Inbox, err = l.newInbox()
	switch {
	case err != nil:
	case l.Outbox != nil:
		l.Outbox.SendTo(l.conn)
		plan := l.layout.databasePlan()
		plan.Queues[0].Timers = false // a table of the version before is used, and refuses timers
		plan.Records = nil            // see verifyRecords
		err = verifyTables(ctx, l, l.Outbox.Conn, plan)
	case l.Inbox != nil:
		err = verifyTables(ctx, l, l.conn, transport.Plan{Inboxes: []string{l.Inbox.Name}})
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
			l.Outbox.Committed = &l.Outage.Committed
		}
	}
	return err
}

// newInbox returns the inbox of the endpoint; nil if handled messages are not recorded.
func (l *launch) newInbox() (*inbox.Inbox, error) {
	if l.e.cfg.Remember <= 0 || l.e.cfg.SendOnly {
		return nil, nil //nolint:nilnil // no inbox is no error
	}
	store, ok := l.database().(transport.OutboxStore)
	if !ok {
		return nil, errors.New("the transport cannot record handled messages: leave Config.Remember out")
	}
	return &inbox.Inbox{
		Name: l.e.cfg.Name + inboxSuffix, Queue: l.names.Of(l.e.cfg.Name), Store: store,
		Log: l.e.cfg.Logger, Translates: l.Translate != nil,
	}, nil
}

// inboxTimeout bounds the inspection of an inbox. An inbox may have many rows.
const inboxTimeout = time.Minute

// reportStart logs the size of the inbox, and a leftover outbox.
func (l *launch) reportStart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, inboxTimeout)
	defer cancel()
	if l.Inbox != nil {
		l.Inbox.Report(ctx, l.e.cfg.Remember)
	}
	l.reportLeftover(ctx)
}

// reportLeftover warns of messages in an outbox that is no longer part of the configuration: nothing
// sends the messages.
func (l *launch) reportLeftover(ctx context.Context) {
	_, stores := l.conn.(transport.OutboxStore)
	if !stores || l.Timers != nil { // the relay of the timers sends what is in the queue
		return
	}
	name := l.e.cfg.Name + outboxSuffix
	stats, err := inspect(ctx, l.conn, name)
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
func (l *launch) openRelay(ctx context.Context) (*outbox.Relay, error) {
	cfg := &l.e.cfg
	return outbox.OpenRelay(ctx, outbox.RelayConfig{
		Outbox: l.Timers, Conn: l.conn, Log: cfg.Logger, Notifier: l.Notifier, Refusals: &l.Auditor.Refusals,
		Queue: l.names.Of(cfg.Name), AuditQueue: l.names.Of(cfg.AuditQueue),
		RefusedFor: cfg.OutboxRefusedFor, StopTimeout: cfg.StopTimeout, InOrder: cfg.Concurrency == 1,
		Settling: l.Settler.Context, Stage: l.relayStage(),
		Unsent: func(queue string, err error) error {
			return &unsentError{classedError{err, classUndeliverable}, queue}
		},
	})
}

// relayStage returns stage Relay. The watch counts the time of the behaviors.
func (l *launch) relayStage() pipeline.Func[*pipeline.Relay] {
	if !l.e.watchesRelay {
		return l.e.relayed
	}
	return func(ctx context.Context, r *pipeline.Relay) error {
		defer awaited(ctx, l.Calls, nameRelay)()
		return l.e.relayed(ctx, r)
	}
}

// unsentError is the failure of a message that the broker refused after it was stored.
type unsentError struct {
	classedError
	queue string // "" of a published message
}

func (e *unsentError) Error() string {
	if e.queue == "" {
		return fmt.Sprintf("the message was stored in the outbox, and could not be published: %v", e.error)
	}
	return fmt.Sprintf("the message was stored in the outbox, and could not be sent to queue %q: %v", e.queue, e.error)
}

// openTimers opens the queue of the timers: of the outbox, or of the transport's own database. A
// timer waits as a row with a name, and the relay sends the timer when the timer is due. In the mode
// SendsAtomicWithReceive the queue has timers alone, and the relay moves each to the timer's queue
// in one transaction. If the database has no such queue, the endpoint starts without timers.
func (l *launch) openTimers(ctx context.Context) error {
	if l.Outbox != nil {
		l.Timers = l.Outbox
		return nil
	}
	o, ok := outbox.New(l.conn, l.e.cfg.Name+outboxSuffix, "")
	if l.e.cfg.Transactions != SendsAtomicWithReceive || !ok {
		return nil
	}
	o.Own = true
	o.SendTo(l.conn)
	_, err := inspect(ctx, l.conn, o.Queue)
	if errors.Is(err, transport.ErrNoQueue) {
		l.noTimers = fmt.Errorf("timers wait in queue %q: %w: create it with Config.Install or Endpoint.Install",
			o.Queue, err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("queue %q of timers: %w", o.Queue, err)
	}
	l.Timers = o
	return nil
}

// newOutage returns the database of the outbox or inbox, with the questions to it.
func newOutage(ctx context.Context, l *launch) *outage.Database {
	of := "outbox"
	if l.Outbox == nil {
		of = "inbox"
	}
	q := outage.Questions{Probe: l.probe, Stores: l.stores, StoresRecords: l.storesRecords}
	return outage.New(ctx, of, q, l.e.cfg.Logger)
}

// probe asks the database of the outbox and inbox for an answer.
func (l *launch) probe(ctx context.Context) error {
	if err := l.Outbox.Overfull(); err != nil {
		return err
	}
	if l.Inbox != nil {
		_, err := l.Inbox.Store.FindHandled(ctx, l.Inbox.Name, []transport.HandledKey{{}})
		return err
	}
	_, err := inspect(ctx, l.Outbox.Conn, l.Outbox.Queue)
	return err
}

// storesRecords asks the database of the handlers' records for all rights, by a record that is
// created and not saved.
func (l *launch) storesRecords(ctx context.Context) error {
	kinds := l.layout.records()
	if len(kinds) == 0 {
		return nil
	}
	db, err := l.e.Database()
	if err != nil {
		return err
	}
	key := uuid.New(time.Now())
	return db.Change(ctx, func(store transport.StateStore) ([]transport.Operation, error) {
		id := transport.RecordID(handledid.Of(kinds[0], key))
		_, err := store.Load(ctx, id, &transport.RecordName{Kind: kinds[0], Key: "probe " + key})
		return nil, err
	})
}

// stores asks the database of the outbox and inbox for a commit as for a message: of an id, which no
// message has, and of a row of the outbox, which the relay removes.
func (l *launch) stores(ctx context.Context) error {
	var key *transport.HandledKey
	if l.Inbox != nil {
		key = &transport.HandledKey{ID: handledid.Of(l.Inbox.Queue, uuid.New(time.Now()))}
	}
	if l.Outbox != nil {
		return l.Outbox.Try(ctx, key)
	}
	return l.Inbox.Store.Store(ctx, transport.OutboxEntry{Inbox: l.Inbox.Name, Key: key})
}
