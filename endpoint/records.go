package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/transport"
)

// kindIn returns the kind of the handler's records in an endpoint; "" where it has none.
func (h *Handler) kindIn(endpoint string) string {
	if h.state == nil {
		return ""
	}
	return stateful.KindOf(endpoint, h.state.Kind)
}

// validateRecords reports mistakes in the declarations of handlers with records.
func (c Config) validateRecords(bad func(format string, args ...any)) {
	owners := map[string]any{}
	type handled struct {
		kind   string
		goType reflect.Type
	}
	seen := map[handled]bool{}
	for i := range c.Handlers {
		h := &c.Handlers[i]
		if h.state == nil || h.invoke == nil {
			continue
		}
		if err := h.state.Validate(); err != nil {
			bad("handler %s, with state %q: %w", h.name, h.state.Kind, err)
			continue
		}
		switch owner, known := owners[h.state.Kind]; {
		case !known:
			owners[h.state.Kind] = h.state.Owner
		case owner != h.state.Owner:
			bad("handler %s: two parts of the program keep state under the name %q: give each a name of its own", h.name, h.state.Kind)
		case seen[handled{h.state.Kind, h.goType}]:
			bad("handler %s: two handlers of %v keep state under the name %q: add each once", h.name, h.goType, h.state.Kind)
		}
		seen[handled{h.state.Kind, h.goType}] = true
	}
	if len(owners) > 0 && c.Outbox == nil && c.Transactions != SendsAtomicWithReceive {
		bad("there are handlers with state, which is stored in one commit with the messages that they send: set Outbox, "+
			"or Transactions to %v", SendsAtomicWithReceive)
	}
}

// records are the kinds of records that the handlers store.
func (e *Endpoint) records() []string {
	var kinds []string
	for i := range e.cfg.Handlers {
		if kind := e.cfg.Handlers[i].kindIn(e.cfg.Name); kind != "" {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// rememberRecords is how long ended records are kept.
func (e *Endpoint) rememberRecords() time.Duration {
	return max(0, cmp.Or(e.cfg.Remember, defaultRemember))
}

// recordsIn returns the inspector of the database that conn is connected to. It fails where the
// database cannot store records.
func recordsIn(conn transport.Conn) (transport.StateInspector, error) {
	inspector, ok := conn.(transport.StateInspector)
	if !ok {
		return nil, errors.New("there are handlers with state, and the database cannot store it: use a transport on a SQL database")
	}
	return inspector, nil
}

// verifyRecords fails where the database cannot store the records of the handlers.
func (l *live) verifyRecords(ctx context.Context) error {
	kinds := l.e.records()
	if len(kinds) == 0 {
		return nil
	}
	conn := l.conn
	if l.Outbox != nil {
		conn = l.Outbox.Conn
	}
	inspector, err := recordsIn(conn)
	if err == nil {
		_, err = inspector.InspectRecords(ctx, kinds[0])
		if errors.Is(err, transport.ErrNoQueue) {
			err = fmt.Errorf("records of %q: %w: create the table with Config.Install or Endpoint.Install", kinds[0], err)
		}
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: %w", l.e.cfg.Name, err)
	}
	return nil
}

// Database returns the database of the handlers' records, for packages of this module such as
// schedule. It fails while the endpoint is not running; the result has the name, the log and the
// warnings of the endpoint nevertheless.
func (e *Endpoint) Database() (stateful.Database, error) {
	db, err := e.database()
	db.Endpoint, db.Log, db.Warnings = e.cfg.Name, e.cfg.Logger, &e.warnings
	return db, err
}

func (e *Endpoint) database() (stateful.Database, error) {
	live := e.live.Load()
	if live == nil {
		return stateful.Database{}, ErrNotRunning
	}
	conn, redelivery := live.conn, max(live.Limits.Lease, live.Limits.MaxHold)
	if live.Outbox != nil {
		conn = live.Outbox.Conn
		redelivery += conn.Limits().Lease // of a row that a relay has received
	}
	db, err := stateful.DatabaseOn(conn)
	db.Inbox, db.Redelivery = live.Inbox != nil, redelivery
	return db, err
}
