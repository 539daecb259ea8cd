// Package outbox stores the messages of handlers in a database, in the commit of the handled message,
// and sends the stored messages to the broker.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/endpoint/internal/work"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/errtree"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// maxEnvelope is the size in bytes up to which the messages of a handler are stored as a single row.
const maxEnvelope = 4 << 20

// Outbox is the database in which the messages of handlers are stored, in the commit with the writes
// of the handlers. The stored messages are a queue of the database, and relays send the messages to
// the broker.
type Outbox struct {
	Conn  transport.Conn
	Store transport.OutboxStore // of Conn; nil if Conn cannot be an outbox
	Queue string
	Inbox string
	Own   bool // the queue is in the transport's own database, and timers alone wait there
	// Committed is set after each commit of the work of a message.
	Committed *atomic.Bool

	maxRow       int // bytes of one stored message; 0 is no limit
	destinations destinations
	book         destination.Book // of the destinations that the relay sends to
	backlog      backlog
}

// New returns the outbox in the database of conn, with the names of the queue and of the inbox. New
// reports whether the database can have an outbox.
func New(conn transport.Conn, queue, inbox string) (o *Outbox, ok bool) {
	store, ok := conn.(transport.OutboxStore)
	return &Outbox{
		Conn: conn, Store: store, Queue: queue, Inbox: inbox, maxRow: conn.Limits().MaxBody,
	}, ok
}

// SendTo sets the broker for the stored messages.
func (o *Outbox) SendTo(broker transport.Conn) {
	o.destinations.conn, o.destinations.limits = broker, broker.Limits()
}

// Close closes the connection to the database.
func (o *Outbox) Close() error {
	if o == nil {
		return nil
	}
	return o.Conn.Close()
}

// now returns the time by the clock that all instances share.
func (o *Outbox) now() time.Time {
	if c, ok := o.Conn.(transport.Clock); ok {
		return c.Now()
	}
	return time.Now()
}

// Begin begins a transaction in which key is stored, unless key is nil.
func (o *Outbox) Begin(ctx context.Context, key *transport.HandledKey) (transport.Tx, error) {
	tx, err := o.Store.BeginStore(ctx, transport.OutboxEntry{Inbox: o.Inbox, Key: key})
	if err == nil {
		return tx, nil
	}
	if err = fmt.Errorf("begin in outbox %q: %w", o.Queue, err); ctx.Err() != nil {
		return nil, &work.ExpiredError{Err: err}
	}
	return nil, &work.DatabaseError{Mark: errtree.Mark{Err: err}}
}

// Commit stores ops, which the broker must be likely to accept, and own for the relay, with the key
// of u and with the writes in tx.
func (o *Outbox) Commit(
	ctx context.Context, u *work.Unit, tx transport.Tx, ops, own []transport.Operation,
) error {
	if err := o.destinations.check(ctx, ops); err != nil {
		return err
	}
	stored, err := o.stored(append(slices.Clip(ops), own...))
	switch {
	case err != nil:
		return err
	case tx != nil:
		err = tx.Complete(ctx, stored)
	case u.Key != nil || len(stored) > 0:
		err = o.Store.Store(ctx, transport.OutboxEntry{Inbox: o.Inbox, Key: u.Key, Ops: stored})
	}
	if err != nil {
		return u.Fail(&work.CommitError{Err: fmt.Errorf("commit in outbox %q: %w", o.Queue, err)})
	}
	o.Committed.Store(true)
	return nil
}

// Send stores ops that belong to no message, in the caller's transaction tx unless tx is nil.
func (o *Outbox) Send(ctx context.Context, tx any, ops []transport.Operation) error {
	if err := o.destinations.check(ctx, ops); err != nil {
		return copies.Single(err)
	}
	stored, err := o.stored(ops)
	if err != nil {
		return err
	}
	return o.Dispatch(ctx, tx, stored)
}

// Dispatch stores rows, in the caller's transaction tx unless tx is nil. With a transaction Conn is
// a [transport.TxDispatcher].
func (o *Outbox) Dispatch(ctx context.Context, tx any, rows []transport.Operation) (err error) {
	if tx == nil {
		_, err = o.Conn.Dispatch(ctx, rows)
	} else {
		_, err = o.Conn.(transport.TxDispatcher).DispatchIn(ctx, tx, rows) //nolint:errcheck // see above
	}
	if err != nil {
		return fmt.Errorf("store in outbox %q: %w", o.Queue, copies.Single(err))
	}
	return nil
}

// stored returns the operations that store ops in the queue of the outbox.
func (o *Outbox) stored(ops []transport.Operation) ([]transport.Operation, error) {
	if len(ops) == 0 {
		return nil, nil
	}
	now := o.now()
	ops, timers, err := o.timers(o.due(ops, now), now)
	if err != nil {
		return nil, err
	}
	envelopes := envelope.Encode(ops, now, maxEnvelope)
	stored := make([]transport.Operation, len(envelopes), len(envelopes)+len(timers))
	for i, body := range envelopes {
		if stored[i], err = o.row(body, now); err != nil {
			return nil, err
		}
	}
	return append(stored, timers...), nil
}

// row returns the operation that stores an envelope.
func (o *Outbox) row(body []byte, now time.Time) (transport.Operation, error) {
	if most := o.maxRow; most > 0 && len(body) > most {
		return transport.Operation{}, &transport.TooLargeError{What: "message", Size: len(body), Max: most}
	}
	m := &transport.Message{ID: uuid.New(now), Body: body}
	return transport.Operation{Message: m, Queue: o.Queue}, nil
}

// due returns ops with due times by the clock of the outbox. The At of a caller is a time by the
// clock of this process.
func (o *Outbox) due(ops []transport.Operation, now time.Time) []transport.Operation {
	copied := false
	for i := range ops {
		if ops[i].At.IsZero() {
			continue
		}
		if !copied {
			ops, copied = slices.Clone(ops), true
		}
		ops[i].At = now.Add(ops[i].Delay(time.Now()))
	}
	return ops
}

// Try stores what the outbox stores for a message: a key, here of no message, unless key is nil, and
// a row, here a row that the relay removes.
func (o *Outbox) Try(ctx context.Context, key *transport.HandledKey) error {
	expired := transport.Operation{Message: &transport.Message{}, Queue: o.Queue, TTL: -1}
	rows, err := o.stored([]transport.Operation{expired})
	if err != nil {
		return err
	}
	return o.Store.Store(ctx, transport.OutboxEntry{Inbox: o.Inbox, Key: key, Ops: rows})
}

// timers returns ops without timers, and the operations that store or remove the timers. A stored
// timer has the name in a header, for tools.
func (o *Outbox) timers(
	ops []transport.Operation, now time.Time,
) (rest, stored []transport.Operation, err error) {
	if !slices.ContainsFunc(ops, work.IsTimer) {
		return ops, nil, nil
	}
	for i := range ops {
		if ops[i].Name == "" {
			rest = append(rest, ops[i])
			continue
		}
		if ops[i].Message == nil {
			stored = append(stored, transport.Operation{Queue: o.Queue, Name: ops[i].Name})
			continue
		}
		row, err := o.row(envelope.Encode(ops[i:i+1], now, 0)[0], now)
		if err != nil {
			return nil, nil, err
		}
		row.Name, row.At = ops[i].Name, ops[i].At
		if row.At.IsZero() {
			row.At = now.Add(ops[i].After)
		}
		row.Message.Headers = header.New(header.Field{Name: header.HoldfastTimer, Value: row.Name})
		stored = append(stored, row)
	}
	return rest, stored, nil
}

// Apart returns ops with the operations that store timers in place of the timers, and with the
// operations that remove the cancelled timers. Apart is for ops that are not stored in the outbox.
func (o *Outbox) Apart(
	ctx context.Context, ops []transport.Operation, cancelled []string,
) ([]transport.Operation, error) {
	if !slices.ContainsFunc(ops, work.IsTimer) && len(cancelled) == 0 {
		return ops, nil
	}
	rest := slices.DeleteFunc(slices.Clone(ops), work.IsTimer)
	timers := slices.DeleteFunc(slices.Clone(ops), func(op transport.Operation) bool {
		return !work.IsTimer(op)
	})
	if err := o.destinations.check(ctx, timers); err != nil {
		return nil, err
	}
	now := o.now()
	_, stored, err := o.timers(o.due(timers, now), now)
	return slices.Concat(rest, stored, o.Cancels(cancelled)), err
}

// Cancels returns the operations that remove timers by stored names.
func (o *Outbox) Cancels(names []string) []transport.Operation {
	var ops []transport.Operation
	for _, name := range names {
		ops = append(ops, transport.Operation{Queue: o.Queue, Name: name})
	}
	return ops
}

const (
	// backlogEvery is the time between two inspections of the outbox.
	backlogEvery = 5 * time.Second
	// backlogRows and backlogAge are the bounds of a backlog. Above these bounds no message is
	// handled: a broker that accepts nothing may still deliver, and the table would grow as long as
	// the queues have messages. Rows that wait for a destination count.
	backlogRows = 100_000
	backlogAge  = time.Minute
	// auditRows is the bound of waiting rows with audit copies alone, and auditWarns is the number
	// of such rows from which on Health warns.
	auditRows  = 1_000_000
	auditWarns = 100_000
)

// backlog is the depth of the outbox, as inspected last.
type backlog struct {
	stats atomic.Pointer[transport.QueueStats]
	full  atomic.Bool
}

// watch inspects the outbox until ctx ends.
func (o *Outbox) watch(ctx context.Context) {
	inspector, ok := o.Conn.(transport.Inspector)
	if !ok {
		return
	}
	for {
		within, cancel := context.WithTimeout(ctx, backlogEvery)
		stats, err := inspector.Inspect(within, o.Queue)
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

func (o *Outbox) isOverfull(stats *transport.QueueStats) bool {
	waiting, audit := o.book.Waiting()
	return stats.Ready+waiting > backlogRows || stats.Oldest > backlogAge || audit > auditRows
}

// Overfull returns an error while the outbox has a backlog.
func (o *Outbox) Overfull() error {
	if o == nil || !o.backlog.full.Load() {
		return nil
	}
	stats := o.backlog.stats.Load()
	waiting, audit := o.book.Waiting()
	err := fmt.Errorf("%w: %d messages wait in outbox %q, the oldest for %v: no message is handled until they are sent",
		transport.ErrUnreachable, stats.Ready+waiting+audit, o.Queue, stats.Oldest.Round(time.Second))
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

// Status is the state of an outbox.
type Status struct {
	Stats        *transport.QueueStats // as inspected last; nil before the first inspection
	Destinations []destination.State   // destinations that accept no messages, or have waiting rows
	Now          time.Time             // by the clock of the outbox
	Warnings     []string
}

// Status returns the state of the outbox.
func (o *Outbox) Status() Status {
	s := Status{Stats: o.backlog.stats.Load(), Destinations: o.book.States(), Now: o.now()}
	if _, audit := o.book.Waiting(); audit > auditWarns {
		s.Warnings = append(s.Warnings,
			fmt.Sprintf("%d audit copies wait in the outbox: from %d on no message is handled", audit, auditRows))
	}
	if w, ok := o.Conn.(transport.Warner); ok {
		s.Warnings = append(s.Warnings, w.Warnings()...)
	}
	return s
}

const (
	// destinationThere is the time for which a queue that existed is taken to exist, and
	// destinationUnknown is the time for a queue about which the broker gave no answer.
	destinationThere   = time.Minute
	destinationUnknown = 10 * time.Second
	// lookTimeout bounds a question to the broker.
	lookTimeout = 2 * time.Second
	// maxDestinations bounds the memory of queues: replies may go to any number of queues.
	maxDestinations = 10_000
)

// destinations finds messages that the broker would refuse. The outbox asks before the commit,
// because the writes of the handlers cannot be undone after the commit.
type destinations struct {
	conn   transport.Conn // of the broker
	limits transport.Limits

	mu    sync.Mutex           // guards known
	known map[string]time.Time // until when a queue is taken to exist
}

// check returns a [*transport.DispatchError] with the operations that the broker would refuse.
func (d *destinations) check(ctx context.Context, ops []transport.Operation) error {
	var failed []transport.OpError
	for i := range ops {
		if err := d.checkOne(ctx, &ops[i]); err != nil {
			failed = append(failed, transport.OpError{Index: i, Err: err})
		}
	}
	if failed == nil {
		return nil
	}
	return &transport.DispatchError{Ops: failed, Total: len(ops)}
}

func (d *destinations) checkOne(ctx context.Context, op *transport.Operation) error {
	m := op.Message
	if m == nil || op.Queue == "" && len(op.Types) == 0 {
		return errNoDestination
	}
	if most := d.limits.MaxBody; most > 0 && len(m.Body) > most {
		return &transport.TooLargeError{What: "body", Size: len(m.Body), Max: most}
	}
	if most := d.limits.MaxHeaders; most > 0 && m.Headers.Size() > most {
		return &transport.TooLargeError{What: "headers", Size: m.Headers.Size(), Max: most}
	}
	if checker, ok := d.conn.(transport.Checker); ok {
		sent := *op
		if op.Name != "" { // the broker gets a timer when the timer is due
			sent.Name, sent.After, sent.At = "", 0, time.Time{}
		}
		if err := checker.Check(&sent); err != nil {
			return err
		}
	}
	if op.Queue == "" || d.exists(op.Queue) {
		return nil
	}
	return d.look(ctx, op.Queue)
}

var errNoDestination = errors.New("operation without message, or with neither queue nor types")

func (d *destinations) exists(queue string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.known[queue])
}

// look asks the broker for a queue. Only [transport.ErrNoQueue] says that the queue is missing: the
// endpoint may have the right to send to a queue and not to inspect the queue, and the broker may be
// away. Further messages do not wait for the answer.
func (d *destinations) look(ctx context.Context, queue string) error {
	inspector, ok := d.conn.(transport.Inspector)
	if !ok {
		return nil
	}
	d.expect(queue, lookTimeout)
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := inspector.Inspect(ctx, queue)
	switch {
	case err == nil:
		d.expect(queue, destinationThere)
	case errors.Is(err, transport.ErrNoQueue):
		d.expect(queue, 0)
		return err
	default:
		d.expect(queue, destinationUnknown)
	}
	return nil
}

// expect takes a queue to exist for a while.
func (d *destinations) expect(queue string, while time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxDestinations {
		d.known = map[string]time.Time{}
	}
	d.known[queue] = time.Now().Add(while)
}

// destinationOf returns the name of the destination of an operation: the queue, or the type of the
// published event.
func destinationOf(op *transport.Operation) string {
	if op.Queue != "" {
		return op.Queue
	}
	if len(op.Types) > 0 {
		return "events of type " + op.Types[0]
	}
	return ""
}
