package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.StateStore     = (*storeTx)(nil)
	_ transport.OutageDetector = (*storeTx)(nil)
)

// outbox records what handlers send, with the keys of handled messages.
type outbox struct {
	*core

	inboxes *inboxes
	encoder *encoder
	writer  *writer
	settler *settler
	records *records
}

// Store implements [transport.OutboxStore], in a batch with what others send, settle and store:
// again when subscribers to messages of e are gone.
func (o *outbox) Store(ctx context.Context, e transport.OutboxEntry) error {
	for try := 1; ; try++ {
		err := o.storeOnce(ctx, e)
		if !o.encoder.lostSubscribers(err, e.Ops) || try == maxLost {
			return err
		}
	}
}

func (o *outbox) storeOnce(ctx context.Context, e transport.OutboxEntry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := o.writer.newWork()
	if err := o.enclose(ctx, w, e); err != nil {
		o.writer.recycle(w)
		return err
	}
	leased := o.leaseRows(&w.unit)
	kept, err := o.writer.do(ctx, w)
	if kept {
		leased.cancel()
		return err
	}
	if err = o.storedAs(ctx, w, err, len(e.Ops)); err == nil {
		o.deliver(leased, &w.unit, e.Ops)
	} else {
		leased.cancel()
	}
	o.writer.recycle(w)
	return err
}

// enclose makes w's unit the recording of e.
func (o *outbox) enclose(ctx context.Context, w *work, e transport.OutboxEntry) error {
	if e.Key != nil {
		if err := o.inboxes.use(e.Inbox); err != nil {
			return err
		}
		if err := o.store.Queues.Check(e.Inbox); err != nil {
			return err
		}
	}
	w.unit.Verb, w.unit.Inbox, w.unit.Key = Record, e.Inbox, e.Key
	return dispatchError(o.encoder.addRows(ctx, w, e.Ops), len(e.Ops))
}

// storedAs returns the error of a unit that was to be recorded, of total operations.
func (o *outbox) storedAs(ctx context.Context, w *work, err error, total int) error {
	switch {
	case err == nil && len(w.failed) > 0:
		return dispatchError(w.failed, total)
	case err == nil && w.unit.Handled:
		return transport.ErrAlreadyHandled
	case err != nil:
		return o.unlocked(o.encoder.blame(ctx, err, &w.unit, total))
	}
	return nil
}

// unlocked adds [transport.ErrUnreachable] to the error of an entry that waited for a lock for too
// long, such as that of an index which is created on the inbox: the entry is not the cause.
func (o *outbox) unlocked(err error) error {
	if err != nil && o.store.Classify(err) == Locked {
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	return err
}

// BeginStore implements [transport.OutboxStore].
func (o *outbox) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	inner, err := ask(ctx, o.core, nil, o.store.Transactions.Begin)
	if err != nil {
		return nil, o.unreachable(err)
	}
	e.Ops = slices.Clone(e.Ops)
	return &storeTx{stateTx{records: o.records, inner: inner}, o, e}, nil
}

// storeTx is a transaction for a handler's writes that belongs to no delivery of this Conn.
type storeTx struct {
	stateTx
	outbox *outbox
	entry  transport.OutboxEntry
}

// Complete implements [transport.Tx].
func (t *storeTx) Complete(ctx context.Context, ops []transport.Operation) error {
	o, e := t.outbox, t.entry
	e.Ops = slices.Concat(e.Ops, ops)
	w := o.writer.newWork()
	defer o.writer.recycle(w)
	err := t.end(&w.unit)
	if err == nil {
		err = o.enclose(ctx, w, e)
	}
	if err != nil {
		return errors.Join(err, t.inner.Rollback(ctx))
	}
	leased := o.leaseRows(&w.unit)
	if err := o.complete(ctx, t.inner, &w.unit); err != nil {
		leased.cancel()
		err = o.encoder.blame(ctx, o.verdict(err), &w.unit, len(e.Ops))
		if o.encoder.lostSubscribers(err, e.Ops) || errors.Is(err, ErrNoDelays) {
			return &outdatedError{err}
		}
		return o.unlocked(err)
	}
	if w.unit.Handled {
		leased.cancel()
		return transport.ErrAlreadyHandled
	}
	o.deliver(leased, &w.unit, e.Ops)
	o.wakes.flushed([]*Unit{&w.unit})
	return nil
}

// Outages is the part of a [Store] that detects a database which answers and takes no writes.
type Outages interface {
	// Outage reports whether err, of a handler's statement, means that the database takes no
	// writes.
	Outage(ctx context.Context, err error) bool
}

// Outage implements [transport.OutageDetector].
func (t *storeTx) Outage(ctx context.Context, err error) bool {
	store := t.outbox.store.Outages
	if store == nil {
		return false
	}
	out, failed := ask(ctx, t.outbox.core, nil, func(ctx context.Context) (bool, error) { return store.Outage(ctx, err), nil })
	return failed == nil && out
}

// leasedRows are the rows of one unit that are inserted with a lease.
type leasedRows struct {
	to    *arrivals
	began time.Time
	rows  int
	size  int64 // of their bodies
}

// leaseRows gives rows of u a lease of the receiver of their queue, as far as the receiver has
// room. Either deliver or cancel is called on the result.
func (o *outbox) leaseRows(u *Unit) (h leasedRows) {
	if !o.cfg.LeasedInserts {
		return h
	}
	for i := range u.Rows {
		row := &u.Rows[i]
		if row.Timed() || row.Named() || row.Published {
			continue
		}
		if h.to == nil {
			if h.to = o.wakes.receiver(row.Queue); h.to == nil {
				return h
			}
			h.began = time.Now()
			u.LeaseFor, u.LeaseOwner = o.directLease(), o.owner
		}
		if row.Queue != h.to.queue || !h.to.direct.reserve(len(row.Body)) {
			continue
		}
		row.Lease = 1 + rand.Int64N(1<<62)
		h.rows++
		h.size += int64(len(row.Body))
	}
	return h
}

// deliver gives their receiver the rows of h that u has inserted for ops.
func (o *outbox) deliver(h leasedRows, u *Unit, ops []transport.Operation) {
	left, size := h.rows, h.size
	for i := range u.Rows {
		row := &u.Rows[i]
		if row.Lease == 0 || row.Seq == 0 {
			continue
		}
		left--
		size -= int64(len(row.Body))
		m := ops[row.Op].Message
		headers := m.Headers.Clone()
		if m.ID != "" && headers.Get(header.MessageID) == "" {
			headers.Set(header.MessageID, m.ID)
		}
		lease := Lease{Seq: row.Seq, ID: row.Lease}
		d := o.settler.newDelivery(h.to.queue, lease, 1, transport.Message{
			ID: m.ID, NativeID: strconv.FormatInt(row.Seq, 10), Headers: headers, Body: m.Body,
		})
		h.to.direct.add(directRow{delivery: d, lease: lease, since: h.began})
	}
	if left > 0 {
		h.to.direct.free(left, size)
	}
}

// cancel gives up the room of rows that were not inserted, or perhaps were.
func (h leasedRows) cancel() {
	if h.rows > 0 {
		h.to.direct.free(h.rows, h.size)
	}
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
