package endpoint

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/outage"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// newOutage returns the database of the outbox or inbox, with the questions to it.
func newOutage(ctx context.Context, l *live) *outage.Database {
	of := "outbox"
	if l.Outbox == nil {
		of = "inbox"
	}
	q := outage.Questions{Probe: l.probe, Stores: l.stores, StoresRecords: l.storesRecords}
	return outage.New(ctx, of, q, l.e.cfg.Logger)
}

// probe asks the database of the outbox and inbox whether it answers.
func (l *live) probe(ctx context.Context) error {
	if err := l.Outbox.Overfull(); err != nil {
		return err
	}
	if l.Inbox != nil {
		_, err := l.Inbox.Store.FindHandled(ctx, l.Inbox.Name, []transport.HandledKey{{}})
		return err
	}
	inspector, ok := l.Outbox.Conn.(transport.Inspector)
	if !ok {
		return nil
	}
	_, err := inspector.Inspect(ctx, l.Outbox.Queue)
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
	var key *transport.HandledKey
	if l.Inbox != nil {
		key = &transport.HandledKey{ID: handledid.Of(l.Inbox.Queue, uuid.New(time.Now()))}
	}
	if l.Outbox != nil {
		return l.Outbox.Try(ctx, key)
	}
	return l.Inbox.Store.Store(ctx, transport.OutboxEntry{Inbox: l.Inbox.Name, Key: key})
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

// destinationHealth returns the states of destinations by the clock of an outbox.
func destinationHealth(states []destination.State, now time.Time) (all []DestinationHealth) {
	for _, s := range states {
		h := DestinationHealth{Destination: s.Destination, Since: s.Since, Rows: s.Rows, Audit: s.Audit}
		if s.Kind != destination.Well {
			h.Problem = s.Kind.String()
		}
		if s.Err != nil {
			h.Err = s.Err.Error()
		}
		if s.Rows > 0 {
			h.Oldest = max(0, now.Sub(s.Oldest))
		}
		all = append(all, h)
	}
	return all
}

// addOutbox adds the state of the outbox and the inbox to h.
func (l *live) addOutbox(h *Health) {
	if s := l.Outage.Status(); s.Err != nil {
		h.bad("the %s has not been usable since %s: %v", s.Of, s.Since.UTC().Format(time.RFC3339), s.Err)
	}
	if l.relay == nil {
		return
	}
	relay := l.relay.Status()
	h.Reasons, h.Warnings = append(h.Reasons, relay.Problems...), append(h.Warnings, relay.Warnings...)
	if l.Outbox == nil {
		return
	}
	o, stored := &OutboxHealth{Ready: -1, Unsettled: -1, Sent: relay.Sent, Refused: relay.Refused}, l.Outbox.Status()
	if stats := stored.Stats; stats != nil {
		o.Ready, o.Unsettled, o.Oldest = stats.Ready, stats.Unsettled, stats.Oldest
	}
	if l.Inbox != nil {
		o.Duplicates = l.Inbox.Duplicates()
	}
	o.Waiting = destinationHealth(stored.Destinations, stored.Now)
	h.Outbox, h.Warnings = o, append(h.Warnings, stored.Warnings...)
}
