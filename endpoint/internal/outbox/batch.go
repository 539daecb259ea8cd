package outbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/destination"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// batch is a group of rows that are sent together, in the order in which the outbox stored the rows.
type batch struct {
	sender *sender
	rows   rowsHeld

	ops     []transport.Operation // not sent yet
	owners  []owner               // of each operation
	decoded time.Time             // when the times to live in ops were counted from

	apart bool   // each row is sent by itself, because the driver panicked over the batch
	yield func() // called when a call takes long: further batches are sent meanwhile
}

// decode reads the operations of ds. An unreadable row stays in the outbox until the lease ends: an
// instance of another version may read the row.
func (b *batch) decode(ctx context.Context, ds []transport.Delivery) {
	now := b.sender.Outbox.now()
	b.decoded = time.Now()
	for _, d := range ds {
		m := d.Message()
		e, err := envelope.Decode(m.Body)
		if err == nil {
			err = m.Undecodable
		}
		if err != nil {
			b.sender.unreadable.add(ctx, b.sender.Log, cmp.Or(m.NativeID, m.ID), err)
			continue
		}
		b.add(&storedRow{
			delivery: d, timer: m.Headers.Get(header.HoldfastTimer), stored: e.Encoded,
		}, e, now)
	}
}

// add adds a row with the operations of an envelope that have not expired.
func (b *batch) add(row *storedRow, e *envelope.Envelope, now time.Time) {
	before := len(b.ops)
	b.ops = e.AppendLive(b.ops, now)
	row.left = len(b.ops) - before
	row.total = row.left
	if row.left < len(e.Ops) { // some have expired; the rest is sent now
		b.sender.refusedRows.removeAll(e.Ops)
	}
	for i := before; i < len(b.ops); i++ {
		op := &b.ops[i]
		row.setDelay(op, now)
		if b.sender.isAudit(b.ops[i : i+1]) { // a driver does not bound the headers of a copy
			op.Message.NativeID = op.Message.ID
		}
		b.owners = append(b.owners, owner{row: row, refused: takeRefused(op.Message)})
	}
	b.rows.add(row)
}

// dispatch sends the operations that are left, and keeps each operation until the broker accepts the
// operation.
func (b *batch) dispatch(ctx context.Context) {
	b.shorten()
	if len(b.ops) == 0 {
		return
	}
	ops, owners := b.ops, b.owners
	b.ops, b.owners = nil, nil
	calls, waiting := b.calls(ops, owners)
	b.ops, b.owners = waiting.ops, waiting.owners
	var all sync.WaitGroup
	for _, c := range calls {
		switch {
		case b.sender.Outbox.Own:
			b.moveAll(ctx, c)
		case b.apart && c.trial == "":
			for _, row := range c.byRow() {
				b.dispatchSome(ctx, row)
			}
		default:
			all.Go(func() { b.sender.perform(ctx, c, b.yield) })
		}
	}
	all.Wait()
	for _, c := range calls {
		if c.performed {
			b.conclude(ctx, c)
		}
	}
}

// calls divides operations into calls, and returns the operations that wait for a destination.
func (b *batch) calls(ops []transport.Operation, owners []owner) (calls []*call, waiting call) {
	book := b.sender.book
	if book.Calm() {
		return []*call{{ops: ops, owners: owners}}, waiting
	}
	type way struct {
		destination.Way
		call *call
	}
	ways, together := map[string]*way{}, new(call)
	for i := range ops {
		to := destinationOf(&ops[i])
		w := ways[to]
		if w == nil {
			w = &way{Way: book.Admit(to), call: together}
			if ways[to] = w; w.Way == destination.Alone || w.Way == destination.Probe {
				w.call = &call{trial: to}
				calls = append(calls, w.call)
			}
		}
		c := w.call
		owners[i].waits = forBroker
		if w.Way == destination.Wait {
			c = &waiting
			owners[i].waits = forDestination
		}
		c.ops, c.owners = append(c.ops, ops[i]), append(c.owners, owners[i])
		if w.Way == destination.Probe {
			w.Way = destination.Wait
		}
	}
	if len(together.ops) > 0 {
		calls = append(calls, together)
	}
	return calls, waiting
}

// dispatchSome sends operations in a single call.
func (b *batch) dispatchSome(ctx context.Context, c *call) {
	b.sender.perform(ctx, c, b.yield)
	b.conclude(ctx, c)
}

// conclude notes the outcomes of a call.
func (b *batch) conclude(ctx context.Context, c *call) {
	_, panicked := errors.AsType[*recoverability.PanicError](c.err)
	if panicked && !b.apart && c.owners[0].row != c.owners[len(c.owners)-1].row {
		b.apart = true // the row that is the cause is not known
		b.ops, b.owners = append(b.ops, c.ops...), append(b.owners, c.owners...)
		b.sender.book.End(c.trial)
		return
	}
	failed := failures(c.err, len(c.ops))
	b.sender.judge(ctx, c, failed)
	b.sent(ctx, c.ops, c.owners, failed)
}

// relayMoves refused messages are moved to the error queue at the same time.
const relayMoves = 16

// sent notes the operations that are sent, and keeps the failed operations that stay.
func (b *batch) sent(
	ctx context.Context, ops []transport.Operation, owners []owner, failed map[int]error,
) {
	stay := make([]bool, len(ops))
	most := relayMoves
	if b.sender.InOrder { // the order is kept
		most = 1
	}
	moving := make(chan struct{}, most)
	var all sync.WaitGroup
	for _, i := range slices.Sorted(maps.Keys(failed)) {
		moving <- struct{}{}
		all.Go(func() {
			defer func() { <-moving }()
			stay[i] = b.sender.keeps(ctx, &ops[i], &owners[i], failed[i], b.yield)
		})
	}
	all.Wait()
	for i := range ops {
		own := owners[i]
		if !stay[i] {
			if failed[i] == nil {
				b.sender.sent.Add(1)
			}
			own.row.left--
			b.sender.refusedRows.remove(&ops[i])
			continue
		}
		own.row.outdated = own.row.outdated || own.outdated
		b.ops, b.owners = append(b.ops, ops[i]), append(b.owners, own)
	}
}

// moveAll moves rows to the queues of the operations: the commit that sends a timer removes the row,
// so the timer is sent once.
func (b *batch) moveAll(ctx context.Context, c *call) {
	if c.trial != "" {
		defer b.sender.book.End(c.trial)
	}
	moves := c.byRow()
	var all sync.WaitGroup
	for _, m := range moves {
		if len(m.ops) == 1 { // otherwise no timer: some may be refused
			all.Go(func() { m.err = b.sender.move(m.owners[0].row, m.ops) })
		}
	}
	all.Wait()
	for _, m := range moves {
		switch {
		case len(m.ops) > 1:
			b.dispatchSome(ctx, m)
		case m.err != nil && !errors.Is(m.err, transport.ErrLeaseLost):
			b.conclude(ctx, m)
		default:
			b.moved(ctx, m)
		}
	}
}

// moved notes the end of a move that has removed the row, or that found the row lost.
func (b *batch) moved(ctx context.Context, m *call) {
	m.owners[0].row.lost.Store(true) // nothing is left to complete
	if m.err == nil {
		b.sender.judge(ctx, m, nil)
		b.sender.refusedRows.remove(&m.ops[0])
		b.sender.sent.Add(1)
	}
}

// shorten forgets operations that have expired since decode, and the operations of rows whose lease
// was lost: another instance sends these. The delays and times to live of the remaining operations
// are shortened by the time since decode.
func (b *batch) shorten() {
	passed := time.Since(b.decoded)
	b.decoded = b.decoded.Add(passed)
	ops, owners := b.ops[:0], b.owners[:0]
	for i, own := range b.owners {
		row, op := own.row, b.ops[i]
		late := max(0, passed-op.After) // since the operation was due
		expired := op.TTL > 0 && op.TTL <= late
		if op.After = max(0, op.After-passed); op.TTL > 0 {
			op.TTL -= late
		}
		switch {
		case row.lost.Load():
		case expired:
			row.left--
			b.sender.refusedRows.remove(&op)
		default:
			ops, owners = append(ops, op), append(owners, own)
		}
	}
	b.ops, b.owners = ops, owners
}

// completeSent removes the rows whose operations were all sent, and reports whether rows are left,
// because the database does not remove these rows at the moment. These rows stay leased: another
// relay would send their messages again.
func (b *batch) completeSent(ctx context.Context) (left bool) {
	var done []*storedRow
	for _, row := range b.rows.all() {
		if row.left == 0 && !row.lost.Load() {
			done = append(done, row)
		}
	}
	settling := b.sender.Settling()
	errs := make([]error, len(done))
	var all sync.WaitGroup
	for i, row := range done {
		all.Go(func() { errs[i] = row.delivery.Complete(settling) })
	}
	all.Wait()
	kept := map[*storedRow]bool{}
	var failing error
	for i, err := range errs {
		switch {
		case err == nil || errors.Is(err, transport.ErrLeaseLost):
		case copies.Unanswered(err) || errors.Is(err, transport.ErrDenied):
			kept[done[i]], failing = true, err
		default:
			b.sender.Log.WarnContext(ctx, "messages of the outbox were sent, and could not be removed from it: "+
				"they are sent again with the same ids", slog.Any("error", err))
		}
	}
	if len(done) > 0 {
		b.sender.noteRemoval(ctx, failing)
	}
	b.rows.drop(func(row *storedRow) bool { return row.lost.Load() || row.left == 0 && !kept[row] })
	return len(kept) > 0
}

// release returns the rows to the outbox, for another instance, except rows that were sent.
func (b *batch) release(ctx context.Context) {
	rows := b.rows.all()
	b.rows.drop(func(*storedRow) bool { return true })
	for _, row := range rows {
		if row.left == 0 {
			continue
		}
		err := row.delivery.Release(b.sender.Settling())
		if err != nil && !errors.Is(err, transport.ErrLeaseLost) {
			b.sender.Log.WarnContext(ctx, "a message of the outbox could not be released: it is sent when its lease ends",
				slog.Any("error", err))
		}
	}
}

const (
	// uncalled is the longest pause of a row that waits for a destination and cannot be called
	// back.
	uncalled = 5 * time.Second
)

// postponement is a row that returns to the outbox for later.
type postponement struct {
	to    string // the destination for which the row waits
	after time.Duration
	fixed bool // the row is not called back
	rest  []transport.Operation
}

// postpone returns rows to the outbox, for later, if their messages wait for a destination and not
// for the broker. The relay sends further rows meanwhile. A relay that sends in order waits for a
// destination instead.
func (b *batch) postpone(ctx context.Context) {
	later := b.postponements()
	if len(later) == 0 {
		return
	}
	ops, owners := b.ops, b.owners
	b.ops, b.owners = nil, nil
	for i, own := range owners {
		if off := later[own.row]; off != nil {
			off.rest = append(off.rest, withRefused(ops[i], own.refused))
		} else {
			b.ops, b.owners = append(b.ops, ops[i]), append(b.owners, own)
		}
	}
	b.rows.drop(func(row *storedRow) bool { return later[row] != nil })
	var all sync.WaitGroup
	for row, off := range later {
		all.Go(func() { b.defers(ctx, row, off) })
	}
	all.Wait()
}

// postponements returns the rows that are postponed.
func (b *batch) postponements() map[*storedRow]*postponement {
	later, soon := map[*storedRow]*postponement{}, map[*storedRow]bool{}
	for i, own := range b.owners {
		if own.waits == forBroker { // the broker is tried again before the row is postponed
			soon[own.row] = true
		}
		if off := b.postponementOf(&b.ops[i], own); off != nil {
			if before := later[own.row]; before == nil || off.after < before.after {
				later[own.row] = off
			}
		}
	}
	maps.DeleteFunc(later, func(row *storedRow, _ *postponement) bool { return soon[row] })
	return later
}

// postponementOf returns how the row of an operation waits; nil if the row stays in the batch.
func (b *batch) postponementOf(op *transport.Operation, own owner) *postponement {
	book := b.sender.book
	switch own.waits {
	case forErrorQueue:
		queue := b.sender.Refusals.ErrorQueue
		if book.Unwell(queue) {
			return &postponement{to: queue, after: book.Pause(queue)}
		}
		return &postponement{to: queue, after: queuesRefuse, fixed: true}
	case forDestination:
		if !b.sender.InOrder {
			to := destinationOf(op)
			return &postponement{to: to, after: book.Pause(to)}
		}
	case forBroker:
	}
	return nil
}

// defers returns a row to the outbox for later.
func (b *batch) defers(ctx context.Context, row *storedRow, off *postponement) {
	handle, err := b.returns(row, off)
	if err == nil {
		b.sender.book.Postpone(off.to, destination.Row{
			Handle: handle, Due: time.Now().Add(off.after), Stored: row.stored, Audit: b.sender.isAudit(off.rest),
		})
	} else if !errors.Is(err, transport.ErrLeaseLost) {
		b.sender.Log.WarnContext(ctx, "a message of the outbox could not be postponed: it is sent when its lease ends",
			slog.Any("error", err))
	}
}

// returns returns a row to the outbox, and returns the handle by which the row is called back; "" for
// a row that is not called back.
func (b *batch) returns(row *storedRow, off *postponement) (handle string, err error) {
	d, ok := row.delivery.(transport.Deferrer)
	_, calls := b.sender.Outbox.Conn.(transport.Hastener)
	if !ok || !calls || len(off.rest) != row.total || row.outdated {
		if !off.fixed {
			off.after = min(off.after, uncalled)
		}
		return "", b.storeAgain(row, off.rest, off.after)
	}
	handle, err = d.Defer(b.sender.Settling(), off.after)
	if off.fixed {
		handle = ""
	}
	return handle, err
}

// storeAgain replaces a row by a new row with the operations that are left, so that no operation is
// sent twice. The new row is received after a while.
func (b *batch) storeAgain(row *storedRow, rest []transport.Operation, after time.Duration) error {
	if row.timer != "" { // the timer can be replaced and cancelled until the relay sends the timer
		rest[0].Name, rest[0].After = row.timer, after
	}
	stored, err := b.sender.Outbox.stored(rest)
	if err != nil {
		return err
	}
	for i := range stored {
		stored[i].After = after
	}
	completer, ok := row.delivery.(transport.Completer)
	if !ok {
		return errNotReplaced
	}
	return completer.CompleteWith(b.sender.Settling(), stored)
}

// rowsHeld are the rows of a batch. The leases of the rows are renewed.
type rowsHeld struct {
	mu   sync.Mutex // guards rows
	rows []*storedRow
}

func (h *rowsHeld) add(row *storedRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rows = append(h.rows, row)
}

// all returns the rows.
func (h *rowsHeld) all() []*storedRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.rows)
}

// drop removes the rows that match.
func (h *rowsHeld) drop(match func(*storedRow) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rows = slices.DeleteFunc(h.rows, match)
}

// renew renews the leases of the rows until stop is called.
func (h *rowsHeld) renew(
	ctx context.Context, receiver transport.Receiver, lease time.Duration,
) (stop func()) {
	renewer, ok := receiver.(transport.Renewer)
	if !ok || lease <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(min(lease/3, renewEvery))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.renewOnce(ctx, renewer)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

func (h *rowsHeld) renewOnce(ctx context.Context, renewer transport.Renewer) {
	rows := h.all()
	if len(rows) == 0 {
		return
	}
	ds := make([]transport.Delivery, len(rows))
	for i, row := range rows {
		ds[i] = row.delivery
	}
	for i, err := range renewer.Renew(ctx, ds) {
		if errors.Is(err, transport.ErrLeaseLost) {
			rows[i].lost.Store(true)
		}
	}
}

// renewEvery is the longest time between two renewals: the lease of a row that was stored for this
// process is shorter than other leases.
const renewEvery = 3 * time.Second

// takeRefused removes the time of the first refusal from a stored message, and returns the time;
// zero if there is none.
func takeRefused(m *transport.Message) time.Time {
	text := m.Headers.Get(header.HoldfastOutboxRefused)
	if text == "" {
		return time.Time{}
	}
	m.Headers.Del(header.HoldfastOutboxRefused)
	refused, err := header.ParseTime(text)
	if err != nil {
		return time.Time{} // no relay has written the text
	}
	return refused
}

// withRefused returns an operation whose message has the time of the first refusal, to be stored.
func withRefused(op transport.Operation, refused time.Time) transport.Operation {
	if refused.IsZero() {
		return op
	}
	m := *op.Message
	m.Headers = m.Headers.Clone()
	m.Headers.Set(header.HoldfastOutboxRefused, header.FormatTime(refused))
	op.Message = &m
	return op
}
