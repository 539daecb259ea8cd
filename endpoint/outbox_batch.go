package endpoint

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/endpoint/internal/panics"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/copies"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// relayBatch is stored messages that are sent together, in the order in which they were stored.
type relayBatch struct {
	relay *relay

	mu   sync.Mutex // guards rows, for their renewal
	rows []*relayRow

	ops     []transport.Operation // that are not sent yet
	owners  []owner               // of each operation
	decoded time.Time             // when the times to live in ops were counted from

	apart bool   // each row is sent by itself, because the driver panicked over the batch
	yield func() // called when a call takes long, so that other batches are sent meanwhile
}

// relayRow is one stored message.
type relayRow struct {
	delivery transport.Delivery
	timer    string // the stored name of a timer; else ""
	stored   time.Time
	total    int  // operations when it was received
	outdated bool // the stored row lacks the time of a refusal
	left     int  // operations that are not sent yet
	lost     bool
}

// owner is the row of an operation.
type owner struct {
	row   *relayRow
	tries int // refusals of the operation that may have been temporary
	waits waiting

	refused  time.Time // when a full queue refused the operation first, by the clock of the outbox; zero: never
	outdated bool      // the stored row lacks refused
}

// waiting is the reason why an operation stays in the outbox.
type waiting int8

const (
	forBroker      waiting = iota // it does not answer
	forDestination                // its destination takes no messages at the moment
	forErrorQueue                 // its queue and the error queue have refused it
)

// decode reads the operations of ds. One that cannot be read stays in the outbox until its lease
// ends: an instance of another version may read it.
func (b *relayBatch) decode(ctx context.Context, ds []transport.Delivery) {
	r := b.relay
	now := r.outbox.now()
	b.decoded = time.Now()
	for _, d := range ds {
		m := d.Message()
		e, err := envelope.Decode(m.Body)
		if err == nil {
			err = m.Undecodable
		}
		if err != nil {
			r.unreadable.add(ctx, r.live.e.cfg.Logger, cmp.Or(m.NativeID, m.ID), err)
			continue
		}
		row := &relayRow{delivery: d, timer: m.Headers.Get(header.HoldfastTimer), stored: e.Encoded}
		before := len(b.ops)
		b.ops = e.AppendLive(b.ops, now)
		row.left = len(b.ops) - before
		row.total = row.left
		if row.left < len(e.Ops) { // some have expired; the others are sent now
			r.refusedRows.removeAll(e.Ops)
		}
		for i := before; i < len(b.ops); i++ {
			op := &b.ops[i]
			switch {
			case row.timer != "": // it is due, as the row was received
				op.At = time.Time{}
			case !op.At.IsZero(): // the broker counts by its own clock
				op.After, op.At = op.Delay(now), time.Time{}
			}
			if r.isAudit(b.ops[i : i+1]) { // a driver has no bound of its own for the headers of a copy
				op.Message.NativeID = op.Message.ID
			}
			b.owners = append(b.owners, owner{row: row, refused: takeRefused(op.Message)})
		}
		b.rows = append(b.rows, row)
	}
}

// dispatch sends the operations that are left, and keeps those that the broker has not accepted.
func (b *relayBatch) dispatch(ctx context.Context) {
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
		case b.relay.outbox.own:
			b.moveAll(ctx, c)
		case b.apart && c.trial == "":
			for len(c.ops) > 0 {
				n := firstRow(c.owners)
				b.dispatchSome(ctx, &relayCall{ops: c.ops[:n], owners: c.owners[:n]})
				c.ops, c.owners = c.ops[n:], c.owners[n:]
			}
		case len(calls) == 1:
			b.dispatchSome(ctx, c)
		default:
			all.Go(func() { b.relay.perform(ctx, c, b.yield) })
		}
	}
	if all.Wait(); len(calls) > 1 && !b.relay.outbox.own {
		for _, c := range calls {
			if c.performed {
				b.conclude(ctx, c)
			}
		}
	}
}

// firstRow returns how many of the first operations are of one row.
func firstRow(owners []owner) int {
	n := slices.IndexFunc(owners, func(o owner) bool { return o.row != owners[0].row })
	if n < 0 {
		return len(owners)
	}
	return n
}

// dispatchSome sends operations in one call.
func (b *relayBatch) dispatchSome(ctx context.Context, c *relayCall) {
	b.relay.perform(ctx, c, b.yield)
	b.conclude(ctx, c)
}

// conclude notes the outcomes of a call.
func (b *relayBatch) conclude(ctx context.Context, c *relayCall) {
	_, panicked := errors.AsType[*recoverability.PanicError](c.err)
	if panicked && !b.apart && c.owners[0].row != c.owners[len(c.owners)-1].row {
		b.apart = true // not known which row is the cause
		b.ops, b.owners = append(b.ops, c.ops...), append(b.owners, c.owners...)
		b.relay.book().End(c.trial)
		return
	}
	failed := failures(c.err, len(c.ops))
	b.relay.judge(ctx, c, failed)
	b.sent(ctx, c.ops, c.owners, failed)
}

// relayMoves messages that were refused are moved to the error queue at once.
const relayMoves = 16

// sent notes the operations that are sent, and keeps those of the failed that stay.
func (b *relayBatch) sent(ctx context.Context, ops []transport.Operation, owners []owner, failed map[int]error) {
	stay := make([]bool, len(ops))
	most := relayMoves
	if cap(b.relay.held) == 1 { // in their order
		most = 1
	}
	moving := make(chan struct{}, most)
	var all sync.WaitGroup
	for _, i := range slices.Sorted(maps.Keys(failed)) {
		moving <- struct{}{}
		all.Go(func() {
			defer func() { <-moving }()
			stay[i] = b.relay.keeps(ctx, &ops[i], &owners[i], failed[i], b.yield)
		})
	}
	all.Wait()
	for i := range ops {
		own := owners[i]
		if !stay[i] {
			if failed[i] == nil {
				b.relay.sent.Add(1)
			}
			own.row.left--
			b.relay.refusedRows.remove(&ops[i])
			continue
		}
		own.row.outdated = own.row.outdated || own.outdated
		b.ops, b.owners = append(b.ops, ops[i]), append(b.owners, own)
	}
}

// moveAll moves rows to the queues of their operations: the row is removed in the commit that sends
// its timer, which is so sent once.
func (b *relayBatch) moveAll(ctx context.Context, c *relayCall) {
	var moves []*relayCall
	for i, own := range c.owners {
		if i == 0 || own.row != c.owners[i-1].row {
			moves = append(moves, new(relayCall))
		}
		m := moves[len(moves)-1]
		m.ops, m.owners = append(m.ops, c.ops[i]), append(m.owners, own)
	}
	if c.trial != "" {
		defer b.relay.book().End(c.trial)
	}
	var all sync.WaitGroup
	for _, m := range moves {
		if len(m.ops) > 1 { // no timer: some may be refused
			continue
		}
		all.Go(func() { m.err = b.relay.move(m.owners[0].row, m.ops) })
	}
	all.Wait()
	for _, m := range moves {
		if len(m.ops) > 1 {
			b.dispatchSome(ctx, m)
			continue
		}
		if m.err != nil && !errors.Is(m.err, transport.ErrLeaseLost) {
			b.conclude(ctx, m)
			continue
		}
		b.mu.Lock()
		m.owners[0].row.lost = true // nothing is left to complete
		b.mu.Unlock()
		if m.err == nil {
			b.relay.judge(ctx, m, nil)
			b.relay.refusedRows.remove(&m.ops[0])
			b.relay.sent.Add(1)
		}
	}
}

// move sends operations in the commit that removes their row.
func (r *relay) move(row *relayRow, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	completer, ok := row.delivery.(transport.Completer)
	if !ok {
		return errNotReplaced
	}
	return completer.CompleteWith(r.live.settler.Context(), ops)
}

// dispatch sends operations. A panic of the driver or of a behavior must not end the process, which
// would send them again when it starts.
func (r *relay) dispatch(ctx context.Context, ops []transport.Operation) (err error) {
	defer panics.Catch(&err)
	if r.live.e.watchesRelay {
		defer r.live.awaited(ctx, nameRelay)()
	}
	return r.live.e.relayed(ctx, &pipeline.Relay{Operations: ops})
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

// failures returns the errors of the operations of a dispatch, by their index.
func failures(err error, total int) map[int]error {
	if err == nil {
		return nil
	}
	refusal, ok := errors.AsType[*transport.DispatchError](err)
	if !ok {
		refusal, _ = errors.AsType[*transport.DispatchError](transport.FailAll(total, err))
	}
	failed := make(map[int]error, len(refusal.Ops))
	for _, op := range refusal.Ops {
		failed[op.Index] = op.Err
	}
	return failed
}

// shorten forgets operations that have expired since they were decoded, and those of rows whose
// lease was lost, which another instance sends. It takes the time since from the delays and times
// to live of the others.
func (b *relayBatch) shorten() {
	now := time.Now()
	passed := now.Sub(b.decoded)
	b.decoded = now
	b.mu.Lock()
	defer b.mu.Unlock()
	ops, owners := b.ops[:0], b.owners[:0]
	for i, own := range b.owners {
		row, op := own.row, b.ops[i]
		late := max(0, passed-op.After) // since the operation was due
		expired := op.TTL > 0 && op.TTL <= late
		if op.After = max(0, op.After-passed); op.TTL > 0 {
			op.TTL -= late
		}
		switch {
		case row.lost:
		case expired:
			row.left--
			b.relay.refusedRows.remove(&op)
		default:
			ops, owners = append(ops, op), append(owners, own)
		}
	}
	b.ops, b.owners = ops, owners
}

// completeSent removes the rows whose operations were all sent. It reports whether the database
// does not remove some of them at the moment: those stay leased, because another relay would send
// them again.
func (b *relayBatch) completeSent(ctx context.Context) (left bool) {
	var done []*relayRow
	b.mu.Lock()
	for _, row := range b.rows {
		if row.left == 0 && !row.lost {
			done = append(done, row)
		}
	}
	b.mu.Unlock()
	settling := b.relay.live.settler.Context()
	errs := make([]error, len(done))
	var all sync.WaitGroup
	for i, row := range done {
		all.Go(func() { errs[i] = row.delivery.Complete(settling) })
	}
	all.Wait()
	kept := map[*relayRow]bool{}
	var failing error
	for i, err := range errs {
		switch {
		case err == nil || errors.Is(err, transport.ErrLeaseLost):
		case copies.Unanswered(err) || errors.Is(err, transport.ErrDenied):
			kept[done[i]], failing = true, err
		default:
			b.relay.live.e.cfg.Logger.WarnContext(ctx, "messages of the outbox were sent, and could not be removed from it: "+
				"they are sent again with the same ids", slog.Any("error", err))
		}
	}
	if len(done) > 0 {
		b.relay.noteRemoval(ctx, failing)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = slices.DeleteFunc(b.rows, func(row *relayRow) bool { return row.lost || row.left == 0 && !kept[row] })
	return len(kept) > 0
}

// release returns the rows that are left to the outbox, for another instance: not those that were
// sent.
func (b *relayBatch) release(ctx context.Context) {
	b.mu.Lock()
	rows := b.rows
	b.rows = nil
	b.mu.Unlock()
	for _, row := range rows {
		if row.left == 0 {
			continue
		}
		if err := row.delivery.Release(b.relay.live.settler.Context()); err != nil && !errors.Is(err, transport.ErrLeaseLost) {
			b.relay.live.e.cfg.Logger.WarnContext(ctx, "a message of the outbox could not be released: it is sent when its lease ends",
				slog.Any("error", err))
		}
	}
}

// renewEvery is the longest time between two renewals: the lease of a row that was stored for this
// process is shorter than that of others.
const renewEvery = 3 * time.Second

// renew renews the leases of the rows until stop is called.
func (b *relayBatch) renew(ctx context.Context) (stop func()) {
	renewer, ok := b.relay.receiver.(transport.Renewer)
	lease := b.relay.outbox.conn.Limits().Lease
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
				b.renewOnce(ctx, renewer)
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
	}
}

func (b *relayBatch) renewOnce(ctx context.Context, renewer transport.Renewer) {
	b.mu.Lock()
	rows := slices.Clone(b.rows)
	b.mu.Unlock()
	if len(rows) == 0 {
		return
	}
	ds := make([]transport.Delivery, len(rows))
	for i, row := range rows {
		ds[i] = row.delivery
	}
	errs := renewer.Renew(ctx, ds)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, err := range errs {
		if errors.Is(err, transport.ErrLeaseLost) {
			rows[i].lost = true
		}
	}
}
