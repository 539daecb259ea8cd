package endpoint

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// backlogEvery is the time between two inspections of the outbox.
	backlogEvery = 5 * time.Second
	// backlogRows and backlogAge are the bounds of a backlog, above which no message is handled: a
	// broker that accepts nothing may still deliver, and the table would grow as long as its queues
	// have messages. Rows that wait for a destination count.
	backlogRows = 100_000
	backlogAge  = time.Minute
	// auditRows is the bound of rows that wait and have audit copies alone, and auditWarns their
	// number from which on Health warns.
	auditRows  = 1_000_000
	auditWarns = 100_000
)

// backlog is the depth of the outbox, as inspected last.
type backlog struct {
	stats atomic.Pointer[transport.QueueStats]
	full  atomic.Bool
}

// watch inspects the outbox until ctx ends.
func (o *outbox) watch(ctx context.Context) {
	inspector, ok := o.conn.(transport.Inspector)
	if !ok {
		return
	}
	for {
		within, cancel := context.WithTimeout(ctx, backlogEvery)
		stats, err := inspector.Inspect(within, o.queue)
		cancel()
		if err == nil && len(stats) == 1 {
			o.backlog.stats.Store(&stats[0])
			o.backlog.full.Store(o.isOverfull(&stats[0]))
		}
		if backoff.Sleep(ctx, backlogEvery) != nil {
			return
		}
	}
}

func (o *outbox) isOverfull(stats *transport.QueueStats) bool {
	waiting, audit := o.book.Waiting()
	return stats.Ready+waiting > backlogRows || stats.Oldest > backlogAge || audit > auditRows
}

// overfull returns an error while the outbox has a backlog.
func (o *outbox) overfull() error {
	if o == nil || !o.backlog.full.Load() {
		return nil
	}
	stats := o.backlog.stats.Load()
	waiting, audit := o.book.Waiting()
	err := fmt.Errorf("%w: %d messages wait in outbox %q, the oldest for %v: no message is handled until they are sent",
		transport.ErrUnreachable, stats.Ready+waiting+audit, o.queue, stats.Oldest.Round(time.Second))
	var culprit destination.State
	for _, s := range o.book.States() {
		if s.Kind != destination.Well && s.Rows >= culprit.Rows {
			culprit = s
		}
	}
	if culprit.Kind != destination.Well {
		err = fmt.Errorf("%w; of them, %d wait for %q, which %v since %s", err, culprit.Rows, culprit.Destination,
			culprit.Kind, culprit.Since.UTC().Format(time.RFC3339))
	}
	return err
}

// newOutage returns the database of the outbox or inbox, with the questions to it.
func newOutage(ctx context.Context, l *live) *outage.Database {
	of := "outbox"
	if l.outbox == nil {
		of = "inbox"
	}
	q := outage.Questions{Probe: l.probe, Stores: l.stores, StoresRecords: l.storesRecords}
	return outage.New(ctx, of, q, l.e.cfg.Logger)
}

// probe asks the database of the outbox and inbox whether it answers.
func (l *live) probe(ctx context.Context) error {
	if err := l.outbox.overfull(); err != nil {
		return err
	}
	if l.inbox != nil {
		_, err := l.inbox.Store.FindHandled(ctx, l.inbox.Name, []transport.HandledKey{{}})
		return err
	}
	inspector, ok := l.outbox.conn.(transport.Inspector)
	if !ok {
		return nil
	}
	_, err := inspector.Inspect(ctx, l.outbox.queue)
	return err
}

// storesRecords asks the database of the handlers' records for all rights, by a record that is
// created and not saved.
func (l *live) storesRecords(ctx context.Context) error {
	kinds := l.e.records()
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

// stores asks the database of the outbox and inbox whether it commits what it commits for a
// message: an id, here one of no message, and a row of the outbox, here one that the relay removes.
func (l *live) stores(ctx context.Context) error {
	var entry transport.OutboxEntry
	if l.inbox != nil {
		entry.Inbox, entry.Key = l.inbox.Name, &transport.HandledKey{ID: handledid.Of(l.inbox.Queue, uuid.New(time.Now()))}
	}
	if l.outbox == nil {
		return l.inbox.Store.Store(ctx, entry)
	}
	expired := transport.Operation{Message: &transport.Message{}, Queue: l.outbox.queue, TTL: -1}
	var err error
	if entry.Ops, err = l.outbox.stored([]transport.Operation{expired}); err != nil {
		return err
	}
	return l.outbox.store.Store(ctx, entry)
}

// OutboxHealth is the state of an endpoint's outbox.
type OutboxHealth struct {
	// Ready messages wait to be sent, and Unsettled ones are being sent, in all instances, as
	// inspected every 5 s. A stored message contains all that one handler sent. -1 before the first
	// inspection.
	Ready     int64 `json:"ready"`
	Unsettled int64 `json:"unsettled"`
	// Oldest is how long the first ready message has waited.
	Oldest time.Duration `json:"oldest_ns"`
	// Sent counts the messages that this instance has sent from the outbox, Refused those of them
	// that moved to the error queue because the broker refused them, and Duplicates the received
	// messages that were handled before.
	Sent       int64 `json:"sent"`
	Refused    int64 `json:"refused"`
	Duplicates int64 `json:"duplicates"`
	// Waiting are the destinations that accept no messages at the moment, and those for which
	// stored messages still wait, by their names, as this instance knows them. The stored messages
	// are not part of Ready.
	Waiting []DestinationHealth `json:"waiting,omitempty"`
}

// DestinationHealth is the state of a destination for which stored messages wait.
type DestinationHealth struct {
	// Destination is the name of a queue, or that of the type of published events.
	Destination string `json:"destination"`
	// Problem says what the destination does, such as "does not answer", and Err is the last error.
	// Both are empty when the destination has answered again.
	Problem string `json:"problem,omitempty"`
	Err     string `json:"error,omitempty"`
	// Since is the begin of the problem.
	Since time.Time `json:"since"`
	// Rows stored messages of this instance wait, and Audit of them have audit copies alone. Oldest
	// is the age of the first.
	Rows   int64         `json:"rows"`
	Audit  int64         `json:"audit,omitempty"`
	Oldest time.Duration `json:"oldest_ns,omitempty"`
}

// waiting returns the state of the destinations for which stored messages wait.
func (o *outbox) waiting() (all []DestinationHealth) {
	for _, s := range o.book.States() {
		h := DestinationHealth{Destination: s.Destination, Since: s.Since, Rows: s.Rows, Audit: s.Audit}
		if s.Kind != destination.Well {
			h.Problem = s.Kind.String()
		}
		if s.Err != nil {
			h.Err = s.Err.Error()
		}
		if s.Rows > 0 {
			h.Oldest = max(0, o.now().Sub(s.Oldest))
		}
		all = append(all, h)
	}
	return all
}

// addOutbox adds the state of the outbox and the inbox to h.
func (l *live) addOutbox(h *Health) {
	if s := l.outage.Status(); s.Err != nil {
		h.bad("the %s has not been usable since %s: %v", s.Of, s.Since.UTC().Format(time.RFC3339), s.Err)
	}
	if l.relay == nil {
		return
	}
	relay := l.relay.status()
	h.Reasons, h.Warnings = append(h.Reasons, relay.problems...), append(h.Warnings, relay.warnings...)
	if l.outbox == nil {
		return
	}
	o := &OutboxHealth{Ready: -1, Unsettled: -1, Sent: relay.sent, Refused: relay.refused}
	if stats := l.outbox.backlog.stats.Load(); stats != nil {
		o.Ready, o.Unsettled, o.Oldest = stats.Ready, stats.Unsettled, stats.Oldest
	}
	if l.inbox != nil {
		o.Duplicates = l.inbox.Duplicates()
	}
	o.Waiting = l.outbox.waiting()
	h.Outbox = o
	if _, audit := l.outbox.book.Waiting(); audit > auditWarns {
		h.Warnings = append(h.Warnings, fmt.Sprintf("%d audit copies wait in the outbox: from %d on no message is handled", audit, auditRows))
	}
	if w, ok := l.outbox.conn.(transport.Warner); ok {
		h.Warnings = append(h.Warnings, w.Warnings()...)
	}
}
