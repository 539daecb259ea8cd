package tablequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Delivery         = (*delivery)(nil)
	_ transport.Completer        = (*delivery)(nil)
	_ transport.RetryReasoner    = (*delivery)(nil)
	_ transport.Postponer        = (*delivery)(nil)
	_ transport.Transactor       = (*delivery)(nil)
	_ transport.ConflictDetector = (*tx)(nil)
)

// delivery is a leased row.
type delivery struct {
	conn     *Conn
	queue    string
	lease    Lease
	count    int
	settling atomic.Bool // being settled, or settled
	locked   atomic.Bool // its row, by its transaction
	msg      transport.Message

	destination *string // of a message for another queue; nil of others

	handled atomic.Pointer[handledMark] // to be recorded with the completion; nil: nothing
}

func (d *delivery) Message() *transport.Message { return &d.msg }

// Attempt implements [transport.Delivery]: delivery_count, which is exact.
func (d *delivery) Attempt() transport.Attempt { return transport.Attempt{N: d.count, Exact: true} }

func (d *delivery) Complete(ctx context.Context) error { return d.settle(ctx, Unit{Verb: Delete}, nil) }

// CompleteWith implements [transport.Completer]: one transaction deletes the row and inserts ops.
func (d *delivery) CompleteWith(ctx context.Context, ops []transport.Operation) error {
	return d.settle(ctx, Unit{Verb: Delete}, ops)
}

func (d *delivery) Retry(ctx context.Context) error { return d.settle(ctx, Unit{Verb: Retry}, nil) }

// maxNote bounds the stored reason of a retry, in bytes.
const maxNote = 4096

// RetryBecause implements [transport.RetryReasoner]: the reason is the row's last_error.
func (d *delivery) RetryBecause(ctx context.Context, reason string) error {
	if len(reason) > maxNote {
		reason = strings.ToValidUTF8(reason[:maxNote], "")
	}
	return d.settle(ctx, Unit{Verb: Retry, Note: storable(reason)}, nil)
}

func (d *delivery) Release(ctx context.Context) error { return d.settle(ctx, Unit{Verb: Release}, nil) }

// leased implements [leaser].
func (d *delivery) leased() (Lease, bool) { return d.lease, !d.settling.Load() && !d.locked.Load() }

// hold ends the renewals of d's lease until its transaction is over.
func (d *delivery) hold() {
	d.conn.renewing.Lock()
	defer d.conn.renewing.Unlock()
	d.locked.Store(true)
}

// settle settles d's row as how says, with ops: again when subscribers to messages of ops are gone.
func (d *delivery) settle(ctx context.Context, how Unit, ops []transport.Operation) error {
	for try := 1; ; try++ {
		err := d.settleOnce(ctx, how, ops)
		if !d.conn.lostSubscribers(err, ops) || try == maxLost {
			return err
		}
	}
}

func (d *delivery) settleOnce(ctx context.Context, how Unit, ops []transport.Operation) error {
	w := d.conn.newWork()
	failed := d.fill(ctx, w, ops)
	if len(failed) > 0 {
		d.conn.recycle(w)
		return dispatchError(failed, len(ops))
	}
	w.unit.Verb, w.unit.After, w.unit.Note = how.Verb, how.After, how.Note
	if how.Verb == Delete {
		d.mark(&w.unit)
	}
	d.settling.Store(true)
	kept, err := d.conn.do(ctx, w)
	if kept {
		d.settling.Store(false)
		return err
	}
	switch {
	case err == nil && len(w.failed) > 0:
		err = dispatchError(w.failed, len(ops))
	case err == nil && w.unit.Lost:
		err = transport.ErrLeaseLost
	case err == nil && w.unit.Handled:
		err = transport.ErrAlreadyHandled
	case err != nil:
		err = d.conn.blame(ctx, err, &w.unit, len(ops))
	}
	d.settling.Store(err == nil || errors.Is(err, transport.ErrLeaseLost))
	d.conn.recycle(w)
	return err
}

// mark adds the key that is recorded with the completion to u.
func (d *delivery) mark(u *Unit) {
	if mark := d.handled.Load(); mark != nil {
		u.Inbox, u.Key = mark.inbox, &mark.key
	}
}

// fill makes w's unit the completion of d with ops.
func (d *delivery) fill(ctx context.Context, w *work, ops []transport.Operation) []transport.OpError {
	w.unit.Verb, w.unit.Queue, w.unit.Lease = Delete, d.queue, d.lease
	return d.conn.addRows(ctx, w, ops)
}

// blame returns a [*transport.DispatchError] for a unit that was refused: with the operations whose
// queues take no messages, or with all when there are none. For a missing inbox it returns the
// error of that, and other errors unchanged.
func (c *Conn) blame(ctx context.Context, err error, u *Unit, total int) error {
	class, rows := c.store.Classify(err), u.Rows
	var failed []transport.OpError
	if busy, ok := errors.AsType[*transport.BusyError](err); ok {
		for i := range rows {
			if rows[i].Queue == busy.Queue {
				failed = append(failed, transport.OpError{Index: rows[i].Op, Err: err})
			}
		}
		if len(failed) == 0 {
			return err
		}
		return dispatchError(failed, total)
	}
	if class == Refused && u.Key != nil && errors.Is(err, transport.ErrNoQueue) {
		state, _ := ask(ctx, c, nil, func(ctx context.Context) (error, error) { return c.store.InboxState(ctx, u.Inbox), nil })
		if errors.Is(state, transport.ErrNoQueue) {
			return state
		}
	}
	if len(rows) == 0 || class != Refused && class != Locked {
		return err
	}
	found, closed := ask(ctx, c, nil, func(ctx context.Context) (bool, error) {
		return c.find(ctx, err, destinations(&Unit{Rows: rows})), nil
	})
	if found {
		for i := range rows {
			if err := c.unusable.of(rows[i].Queue); err != nil {
				failed = append(failed, transport.OpError{Index: rows[i].Op, Err: err})
			}
		}
	}
	if len(failed) == 0 && (class == Locked || closed != nil) {
		return err
	}
	if len(failed) == 0 {
		failed = failAll(rows, err)
	}
	return dispatchError(failed, total)
}

// Begin implements [transport.Transactor].
func (d *delivery) Begin(ctx context.Context) (transport.Tx, error) {
	inner, err := ask(ctx, d.conn, nil, d.conn.store.Begin)
	if err != nil {
		return nil, err
	}
	if l, ok := inner.(Locker); ok {
		l.Completes(d.queue, d.lease, d.hold)
	}
	return &tx{stateTx{conn: d.conn, inner: inner}, d}, nil
}

// tx is a delivery's transaction.
type tx struct {
	stateTx
	delivery *delivery
}

// Inner returns the dialect's part of a transaction of this engine, and reports whether h is one.
func Inner(h transport.HandlerTx) (StoreTx, bool) {
	if own, ok := transport.TxOf[*tx](h); ok {
		return own.inner, true
	}
	if own, ok := transport.TxOf[*storeTx](h); ok {
		return own.inner, true
	}
	return nil, false
}

// Complete implements [transport.Tx].
func (t *tx) Complete(ctx context.Context, ops []transport.Operation) error {
	d, c := t.delivery, t.delivery.conn
	w := c.newWork()
	defer c.recycle(w)
	if err := t.end(&w.unit); err != nil {
		return errors.Join(err, t.inner.Rollback(ctx))
	}
	if failed := d.fill(ctx, w, ops); len(failed) > 0 {
		return errors.Join(dispatchError(failed, len(ops)), t.inner.Rollback(ctx))
	}
	d.mark(&w.unit)
	d.settling.Store(true)
	err := c.complete(ctx, t.inner, &w.unit)
	d.locked.Store(false)
	switch {
	case err != nil:
		d.settling.Store(false)
		err = c.blame(ctx, c.verdict(err), &w.unit, len(ops))
		if busy := c.impediment(ctx, err, &w.unit); busy != nil {
			err = c.blame(ctx, busy, &w.unit, len(ops))
		}
		if c.lostSubscribers(err, ops) || errors.Is(err, ErrNoDelays) {
			return &outdatedError{err}
		}
		return err
	case w.unit.Lost:
		return transport.ErrLeaseLost
	case w.unit.Handled:
		d.settling.Store(false)
		return transport.ErrAlreadyHandled
	}
	c.wakes.flushed([]*Unit{&w.unit})
	return nil
}

// impediment returns a [*transport.BusyError] if err is that of a transaction which waited too long
// for a lock when it inserted the rows of u. A named row waits for transactions with the same name,
// which says nothing about its queue, and so do the handler's own writes.
func (c *Conn) impediment(ctx context.Context, err error, u *Unit) error {
	if c.store.Classify(err) != Locked || errors.Is(err, ErrWrites) || len(u.Rows) == 0 ||
		u.HasNames() {
		return nil
	}
	busy, closed := ask(ctx, c, nil, func(context.Context) (error, error) {
		units := []*Unit{u}
		return c.impede(err, units, c.failingQueue(units)), nil
	})
	return cmp.Or(busy, closed)
}

// complete completes u in tx. The endpoint bounds it by ctx.
func (c *Conn) complete(ctx context.Context, tx StoreTx, u *Unit) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	err := tx.Complete(ctx, u)
	if err != nil && c.store.Classify(err) == Conflict {
		err = fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return err
}

// conflict reports whether err, of a statement in tx or of its completion, is one after which the
// same transaction may succeed.
func (c *Conn) conflict(tx StoreTx, err error) bool {
	if _, again := errors.AsType[*outdatedError](err); again {
		return true
	}
	if b, ok := tx.(Breakable); ok && b.Broken() || errors.Is(err, transport.ErrConflict) {
		return true
	}
	class := c.store.Classify(err)
	return class == Conflict || class == Locked
}

// outdatedError is the error of a transaction that sent to a queue whose table is not as it was
// known to be: that of a subscriber is gone, or one turned out to be foreign. The next transaction
// is prepared with the new knowledge.
type outdatedError struct{ error }

func (e *outdatedError) Unwrap() error { return e.error }

// Rollback implements [transport.Tx].
func (t *tx) Rollback(ctx context.Context) error {
	defer t.delivery.locked.Store(false)
	return t.stateTx.Rollback(ctx)
}

var (
	_ transport.Deferrer = (*delivery)(nil)
	_ transport.Hastener = (*Conn)(nil)
)

// Defer implements [transport.Deferrer]. The handle is the number of the row.
func (d *delivery) Defer(ctx context.Context, after time.Duration) (handle string, err error) {
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil {
		return "", err
	}
	return strconv.FormatInt(d.lease.Seq, 10), nil
}

// Hasten implements [transport.Hastener].
func (c *Conn) Hasten(ctx context.Context, queue string, handles []string) error {
	store, ok := c.store.(Hastener)
	if !ok {
		return nil
	}
	queue = c.ShortName(queue)
	seqs := make([]int64, 0, len(handles))
	for _, handle := range handles {
		if seq, err := strconv.ParseInt(handle, 10, 64); err == nil {
			seqs = append(seqs, seq)
		}
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		_, err := ask(ctx, c, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, store.Hasten(ctx, queue, part) })
		if err != nil {
			return err
		}
		c.wakes.announce(queue)
	}
	return nil
}

const (
	// postponedFor bounds the wait of a row for the end of a lock, where this process does not
	// notice it.
	postponedFor = 30 * time.Second
	// briefly is the wait of a row for a lock that has just ended, or that this process does not
	// know.
	briefly = 500 * time.Millisecond
	// unnotedFor is the wait of a row that is not remembered, because too many are.
	unnotedFor   = 5 * time.Second
	maxPostponed = 100_000 // rows that are remembered for one lock
	hastenRows   = 1000    // in one statement
)

const lockAdvice = "another transaction has locked its table, as VACUUM FULL, ALTER TABLE and index maintenance do; " +
	"its messages are sent when the lock ends"

const rowLockAdvice = "a write to its table waits for another transaction, as a trigger does that changes a row which that transaction has " +
	"changed; its messages are sent when the write succeeds"

// obstacle is what keeps messages from a queue.
type obstacle int8

const (
	// tableLocked: the watcher looks for the end of the lock. Until then operations are refused.
	tableLocked obstacle = iota
	// suspected: a statement with rows for the queue failed. Units for the queue take the detour.
	suspected
	// impeded: a write by itself failed, too. Operations are refused until a probe succeeds.
	impeded
)

// postponed is a queue that takes no messages, with the rows that wait for it.
type postponed struct {
	obstacle obstacle
	class    Class // of the error
	reason   string
	since    time.Time
	probe    time.Time // of an impeded queue: from then on a unit is written, as a probe
	failed   time.Time // the last probe
	called   time.Time // the last row, as a probe

	rows map[string]map[int64]struct{} // seqs by queue
	n    int
}

// admits reports whether an operation for the queue is not refused. Of an impeded queue that
// operation is a probe.
func (p *postponed) admits() bool {
	now := time.Now()
	if p.obstacle == impeded && !now.Before(p.probe) {
		p.probe = now.Add(2 * detourWait) // the probe itself waits for a second
		return true
	}
	return p.obstacle == suspected
}

// forgetAfter is the time without a probe after which a queue counts as one that takes messages.
const forgetAfter = time.Minute

// waitingRow is a row that waits for a queue.
type waitingRow struct {
	queue string // that the row is in
	seq   int64
}

// next returns a row that is to be the next probe, and forgets it. A row is delivered some time
// after the call, so the next is called after a pause.
func (p *postponed) next() (row waitingRow, ok bool) {
	now := time.Now()
	if p.obstacle != impeded || now.Before(p.probe) || now.Sub(p.called) < detourWait {
		return waitingRow{}, false
	}
	for from, seqs := range p.rows {
		for seq := range seqs {
			delete(seqs, seq)
			p.n--
			p.called = now
			return waitingRow{from, seq}, true
		}
	}
	return waitingRow{}, false
}

// Postpone implements [transport.Postponer]: the row waits without a lease, and becomes visible
// when the lock on busy ends.
func (d *delivery) Postpone(ctx context.Context, busy string) error {
	busy = d.conn.ShortName(busy)
	after := d.conn.unusable.postponement(busy)
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil || after != postponedFor {
		return err
	}
	if !d.conn.unusable.postpone(busy, d.queue, d.lease.Seq) { // the lock has ended meanwhile
		d.conn.hasten(d.queue, []int64{d.lease.Seq})
	}
	return nil
}

// postponement returns the wait of a row for queue.
func (u *unusable) postponement(queue string) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch p := u.locked[queue]; {
	case p == nil:
		return briefly
	case p.n >= maxPostponed:
		return unnotedFor
	}
	return postponedFor
}

// postpone notes that row seq of from waits for the end of the lock on queue. It reports whether
// there is a lock.
func (u *unusable) postpone(queue, from string, seq int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.locked[queue]
	if p == nil {
		return false
	}
	seqs := p.rows[from]
	if seqs == nil {
		seqs = map[int64]struct{}{}
		p.rows[from] = seqs
	}
	if _, again := seqs[seq]; !again {
		seqs[seq] = struct{}{}
		p.n++
	}
	return true
}

// lock refuses operations for queue until the lock on its table ends.
func (c *Conn) lock(queue string) {
	if c.unusable.lock(queue) {
		c.refuses(queue, lockAdvice)
	}
}

// refuses logs that operations for queue are refused, and starts a watcher if there is none.
func (c *Conn) refuses(queue, reason string) {
	c.cfg.Env.Log().WarnContext(c.life, "a queue takes no messages: deliveries that send to it are postponed, and use up no attempt",
		slog.String("queue", queue), slog.String("reason", reason))
	if c.unusable.watch() {
		c.running.Go(c.watchQueues)
	}
}

// watchQueues looks for the ends of locks and calls back rows as probes, until all queues take
// messages.
func (c *Conn) watchQueues() {
	for {
		queues, watching := c.unusable.watched()
		if !watching || backoff.Sleep(c.life, lockPoll) != nil {
			return
		}
		if len(queues) > 0 {
			c.watchLocks(queues)
		}
		for _, row := range c.unusable.probes() {
			c.hasten(row.queue, []int64{row.seq})
		}
	}
}

// watchLocks asks for the end of the locks on queues.
func (c *Conn) watchLocks(queues []string) {
	locks := c.store.(Locks) //nolint:errcheck // find has seen that it is one
	ctx, cancel := context.WithTimeout(c.life, maxWait)
	defer cancel()
	locked, err := locks.Locked(ctx, queues)
	for i, q := range queues {
		if err != nil || locked[i] {
			continue
		}
		if p := c.unlock(q); p != nil {
			c.hastenAll(p)
		}
	}
}

// unlock ends the refusal of operations for queue, and returns the rows that wait for the queue. It
// returns nil if no operation was refused.
func (c *Conn) unlock(queue string) *postponed {
	p := c.unusable.unlock(queue)
	if p == nil || p.obstacle == suspected {
		return nil
	}
	c.cfg.Env.Log().InfoContext(c.life, "a queue takes messages again",
		slog.String("queue", queue), slog.Duration("after", time.Since(p.since)), slog.Int("waiting", p.n))
	return p
}

// hastenAll makes the rows of p visible.
func (c *Conn) hastenAll(p *postponed) {
	for from, seqs := range p.rows {
		c.hasten(from, slices.Sorted(maps.Keys(seqs)))
	}
}

// hasten makes rows visible at once. When that fails they become visible at the end of their wait.
func (c *Conn) hasten(queue string, seqs []int64) {
	h, ok := c.store.(Hastener)
	if !ok {
		return
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		ctx, cancel := context.WithTimeout(c.life, maxWait)
		err := h.Hasten(ctx, queue, part)
		cancel()
		if err != nil {
			c.cfg.Env.Log().WarnContext(c.life, "messages that waited for the end of a lock cannot be made visible now: they are delivered later",
				slog.String("queue", queue), slog.Int("messages", len(part)), slog.Duration("within", postponedFor), slog.Any("error", err))
			return
		}
		c.wakes.announce(queue)
	}
}
