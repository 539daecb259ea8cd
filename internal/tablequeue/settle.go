package tablequeue

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.Delivery         = (*delivery)(nil)
	_ transport.Completer        = (*delivery)(nil)
	_ transport.RetryReasoner    = (*delivery)(nil)
	_ transport.Postponer        = (*delivery)(nil)
	_ transport.Transactor       = (*delivery)(nil)
	_ transport.Deferrer         = (*delivery)(nil)
	_ transport.HandledRecorder  = (*delivery)(nil)
	_ transport.Relayer          = (*delivery)(nil)
	_ transport.ConflictDetector = (*tx)(nil)
)

// settler settles deliveries.
type settler struct {
	*core

	encoder   *encoder
	writer    *writer
	unusable  *unusable
	obstacles *obstacles
	records   *records

	renewing sync.RWMutex // held by renewals, and exclusively to prevent them for a moment
}

func (s *settler) newDelivery(queue string, lease Lease, count int, m transport.Message) *delivery {
	d := &delivery{settler: s, queue: queue, lease: lease, count: count, msg: m}
	if s.store.Foreign != nil {
		d.forward()
	}
	return d
}

// Hasten implements [transport.Hastener].
func (s *settler) Hasten(ctx context.Context, queue string, handles []string) error {
	store := s.store.Hastener
	if store == nil {
		return nil
	}
	queue = s.shortName(queue)
	seqs := make([]int64, 0, len(handles))
	for _, handle := range handles {
		if seq, err := strconv.ParseInt(handle, 10, 64); err == nil {
			seqs = append(seqs, seq)
		}
	}
	for part := range slices.Chunk(seqs, hastenRows) {
		_, err := ask(ctx, s.core, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, store.Hasten(ctx, queue, part) })
		if err != nil {
			return err
		}
		s.wakes.announce(queue)
	}
	return nil
}

// delivery is a leased row.
type delivery struct {
	settler  *settler
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
	d.settler.renewing.Lock()
	defer d.settler.renewing.Unlock()
	d.locked.Store(true)
}

// settle settles d's row as how says, with ops: again when subscribers to messages of ops are gone.
func (d *delivery) settle(ctx context.Context, how Unit, ops []transport.Operation) error {
	encoder := d.settler.encoder
	for try := 1; ; try++ {
		err := d.settleOnce(ctx, how, ops)
		if !encoder.lostSubscribers(err, ops) || try == maxLost {
			return err
		}
	}
}

func (d *delivery) settleOnce(ctx context.Context, how Unit, ops []transport.Operation) error {
	s := d.settler
	w := s.writer.newWork()
	failed := d.fill(ctx, w, ops)
	if len(failed) > 0 {
		s.writer.recycle(w)
		return dispatchError(failed, len(ops))
	}
	w.unit.Verb, w.unit.After, w.unit.Note = how.Verb, how.After, how.Note
	if how.Verb == Delete {
		d.mark(&w.unit)
	}
	d.settling.Store(true)
	kept, err := s.writer.do(ctx, w)
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
		err = s.encoder.blame(ctx, err, &w.unit, len(ops))
	}
	d.settling.Store(err == nil || errors.Is(err, transport.ErrLeaseLost))
	s.writer.recycle(w)
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
	return d.settler.encoder.addRows(ctx, w, ops)
}

// Begin implements [transport.Transactor].
func (d *delivery) Begin(ctx context.Context) (transport.Tx, error) {
	s := d.settler
	inner, err := ask(ctx, s.core, nil, s.store.Transactions.Begin)
	if err != nil {
		return nil, err
	}
	if l, ok := inner.(Locker); ok {
		l.Completes(d.queue, d.lease, d.hold)
	}
	return &tx{stateTx{records: s.records, inner: inner}, d}, nil
}

// Defer implements [transport.Deferrer]. The handle is the number of the row.
func (d *delivery) Defer(ctx context.Context, after time.Duration) (handle string, err error) {
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil {
		return "", err
	}
	return strconv.FormatInt(d.lease.Seq, 10), nil
}

// Postpone implements [transport.Postponer]: the row waits without a lease, and becomes visible
// when the lock on busy ends.
func (d *delivery) Postpone(ctx context.Context, busy string) error {
	s := d.settler
	busy = s.shortName(busy)
	after := s.unusable.postponement(busy)
	if err := d.settle(ctx, Unit{Verb: Release, After: after}, nil); err != nil || after != postponedFor {
		return err
	}
	if !s.unusable.postpone(busy, d.queue, d.lease.Seq) { // the lock has ended meanwhile
		s.obstacles.hasten(d.queue, []int64{d.lease.Seq})
	}
	return nil
}

// RecordHandled implements [transport.HandledRecorder].
func (d *delivery) RecordHandled(inbox string, key *transport.HandledKey) {
	if key == nil {
		d.handled.Store(nil)
		return
	}
	d.handled.Store(&handledMark{inbox, *key})
}

// handledMark is a key that the completion of a delivery records.
type handledMark struct {
	inbox string
	key   transport.HandledKey
}

// forward takes the header with the destination off a message, and notes the destination unless
// that is the queue that it was received from.
func (d *delivery) forward() {
	to, found := d.msg.Headers.Lookup(header.ForwardDestination)
	if !found {
		return
	}
	d.msg.Headers.Del(header.ForwardDestination)
	if d.settler.shortName(to) != d.queue {
		d.destination = new(to)
	}
}

// Relay implements [transport.Relayer].
func (d *delivery) Relay() []transport.Operation {
	if d.destination == nil {
		return nil
	}
	return []transport.Operation{{Message: &d.msg, Queue: *d.destination}}
}

// tx is a delivery's transaction.
type tx struct {
	stateTx
	delivery *delivery
}

// Complete implements [transport.Tx].
func (t *tx) Complete(ctx context.Context, ops []transport.Operation) error {
	d, s := t.delivery, t.delivery.settler
	w := s.writer.newWork()
	defer s.writer.recycle(w)
	if err := t.end(&w.unit); err != nil {
		return errors.Join(err, t.inner.Rollback(ctx))
	}
	if failed := d.fill(ctx, w, ops); len(failed) > 0 {
		return errors.Join(dispatchError(failed, len(ops)), t.inner.Rollback(ctx))
	}
	d.mark(&w.unit)
	d.settling.Store(true)
	err := s.complete(ctx, t.inner, &w.unit)
	d.locked.Store(false)
	switch {
	case err != nil:
		d.settling.Store(false)
		err = s.encoder.blame(ctx, s.verdict(err), &w.unit, len(ops))
		if busy := s.obstacles.impediment(ctx, err, &w.unit); busy != nil {
			err = s.encoder.blame(ctx, busy, &w.unit, len(ops))
		}
		if s.encoder.lostSubscribers(err, ops) || errors.Is(err, ErrNoDelays) {
			return &outdatedError{err}
		}
		return err
	case w.unit.Lost:
		return transport.ErrLeaseLost
	case w.unit.Handled:
		d.settling.Store(false)
		return transport.ErrAlreadyHandled
	}
	s.wakes.flushed([]*Unit{&w.unit})
	return nil
}

// Rollback implements [transport.Tx].
func (t *tx) Rollback(ctx context.Context) error {
	defer t.delivery.locked.Store(false)
	return t.stateTx.Rollback(ctx)
}
