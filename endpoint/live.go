package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/names"
	"github.com/holdfast-go/holdfast/endpoint/internal/outbox"
	"github.com/holdfast-go/holdfast/endpoint/internal/overdue"
	"github.com/holdfast-go/holdfast/endpoint/internal/process"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/transport"
)

// live is a running endpoint, as far as sessions, sends and Health need the endpoint.
type live struct {
	process.Shared

	conn       transport.Conn
	names      names.Queues
	publishes  bool
	joins      bool            // messages can be sent in a transaction of the caller
	atomic     bool            // the mode is SendsAtomicWithReceive
	noTimers   error           // why Timers is nil although the configuration asks for timers
	relay      *outbox.Relay   // of timers; nil without
	sources    []source        // of the endpoint's own queues
	satellites *satellites     // same, of the driver's
	stopping   <-chan struct{} // closed when no more messages are received
}

// Begin implements [work.Store].
func (l *live) Begin(
	ctx context.Context, key *transport.HandledKey, d transport.Delivery,
) (transport.Tx, error) {
	if l.Outbox != nil {
		return l.Outbox.Begin(ctx, key)
	}
	if !l.atomic {
		return nil, errors.New("no transaction: set Config.Outbox, or Config.Transactions to SendsAtomicWithReceive")
	}
	t, ok := d.(transport.Transactor)
	if !ok {
		return nil, errors.New("no transaction: the transport offers none")
	}
	return t.Begin(ctx)
}

// Undo implements [work.Store].
func (l *live) Undo(ctx context.Context, tx transport.Tx, id string) {
	l.Settler.Undo(ctx, tx, id)
}

// checkTimer returns an error if the endpoint cannot set or cancel a timer with the name.
func (l *live) checkTimer(name timer.Name) error {
	if err := name.Validate(); err != nil || l.Timers != nil {
		return err //nolint:wrapcheck // the caller names the call
	}
	return cmp.Or(l.noTimers, errNoTimers)
}

var (
	errNoTimers = errors.New("timers need Config.Outbox, or the transaction mode SendsAtomicWithReceive on a SQL transport")
	errRecovers = errors.New("a Recover stage and OnFinalFailure have no timers: they belong to the commit of a handled message")
)

// database returns the connection to the database of the outbox, or without an outbox the
// connection of the transport.
func (l *live) database() transport.Conn {
	if l.Outbox != nil {
		return l.Outbox.Conn
	}
	return l.conn
}

// named returns the sources of queues, or all of the endpoint's own if there are no names.
func (l *live) named(queues []string) ([]source, error) {
	queues = slices.Clone(queues)
	for i, queue := range queues {
		queue = l.names.Of(queue)
		queues[i] = queue
		if !slices.ContainsFunc(l.sources, func(s source) bool { return s.Queue() == queue }) {
			return nil, fmt.Errorf("queue %q: the endpoint does not receive from it", queue)
		}
	}
	if len(queues) == 0 {
		return l.sources, nil
	}
	return slices.DeleteFunc(slices.Clone(l.sources), func(s source) bool { return !slices.Contains(queues, s.Queue()) }), nil
}

// receivesFrom reports whether the endpoint receives from the queue with that short name; the
// driver's own queues are included.
func (l *live) receivesFrom(queue string) bool {
	is := func(s source) bool { return l.names.Of(s.Queue()) == queue }
	return slices.ContainsFunc(l.sources, is) || slices.ContainsFunc(l.satellites.all(), is)
}

// addTo adds the state of a running endpoint to h.
func (l *live) addTo(h *Health, warnings []string) {
	select {
	case <-l.stopping:
		h.bad("the endpoint is stopping")
	default:
	}
	for _, s := range l.sources {
		s.addTo(h)
		l.addStuck(h, s.Queue(), s.Slots())
	}
	l.satellites.addTo(h)
	l.addOutbox(h)
	l.addFunctions(h)
	h.Warnings = append(h.Warnings, warnings...)
	if w, ok := l.conn.(transport.Warner); ok {
		h.Warnings = append(h.Warnings, w.Warnings()...)
	}
	l.addQuarantine(h)
	if n := l.Recovery.Stuck(); n > 0 {
		h.bad("failed messages that cannot be settled: %d", n)
	}
	h.addHeld(&l.Recovery.Room)
	for _, limit := range l.Throttle.States() {
		h.RateLimits = append(h.RateLimits, RateLimitHealth(limit))
		limited := "messages"
		if limit.Type != "" {
			limited = fmt.Sprintf("messages of type %q", limit.Type)
		}
		h.bad("%s are attempted one at a time since %s, after failures in a row", limited, limit.Since.UTC().Format(time.RFC3339))
	}
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

// addQuarantine adds the state of the quarantine to h.
func (l *live) addQuarantine(h *Health) {
	if l.Quarantine == nil {
		return
	}
	queue, s := l.Quarantine.Queue, l.Quarantine.Status()
	if s.Missing {
		h.Warnings = append(h.Warnings,
			fmt.Sprintf("there is no queue %q: a poison message is redelivered without a limit", queue))
		return
	}
	h.Quarantined = s.Waiting
	if s.Visit != nil {
		h.Queues = append(h.Queues, queueHealth(queue, *s.Visit))
		l.addStuck(h, l.names.Of(h.Endpoint), 1)
	}
}

// addStuck adds the calls of the source's queue to h if they take all slots.
func (l *live) addStuck(h *Health, queue string, slots int) {
	late := l.Calls.Late(queue)
	if len(late) < max(1, slots) || !takeAll(late) {
		return
	}
	text := fmt.Sprintf("all %d slots of %q are taken by calls that do not return: %s", slots, queue, namesOf(stuckHandlers(late)))
	if slices.ContainsFunc(late, func(c overdue.Late) bool { return c.Limit == 0 }) {
		h.Warnings = append(h.Warnings, text)
	} else if !slices.Contains(h.Reasons, text) { // of the quarantine, which has the name of its endpoint
		h.bad("%s", text)
	}
}

// addFunctions adds the functions that do not return to h.
func (l *live) addFunctions(h *Health) {
	if late := l.Calls.LateFunctions(); len(late) > 0 {
		h.Warnings = append(h.Warnings, "functions do not return: "+namesOf(stuckHandlers(late)))
	}
}
