package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
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

// maxFound is the number of keys that one request looks for.
const maxFound = 500

// find is a look for one key, in a batch with others.
type find struct {
	inbox string
	key   transport.HandledKey
	state transport.HandledState
}

// inboxes finds, inspects and removes the keys of handled messages.
type inboxes struct {
	*core

	finds *batch.Batcher[*find]
	used  sync.Map // the names of the inboxes that were used
}

func newInboxes(c *core) *inboxes {
	in := &inboxes{core: c}
	in.finds = batch.New(batch.Config[*find]{Flush: in.findAll, Flushers: c.cfg.Flushers, MaxItems: maxFound})
	return in
}

// FindHandled implements [transport.OutboxStore]. The keys of concurrent calls share requests.
func (in *inboxes) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	if err := in.use(inbox); err != nil {
		return nil, err
	}
	states := make([]transport.HandledState, len(keys))
	if len(keys) != 1 {
		err := in.call(ctx, []string{inbox}, func(ctx context.Context) (err error) {
			for at := 0; at < len(keys) && err == nil; at += maxFound {
				some := keys[at:min(at+maxFound, len(keys))]
				var found []transport.HandledState
				found, err = in.store.Inboxes.FindHandled(ctx, inbox, some)
				copy(states[at:], found)
			}
			return err
		})
		return states, in.notFound(err)
	}
	f := &find{inbox: inbox, key: keys[0]}
	err := in.finds.Do(ctx, f)
	switch {
	case err == nil:
		states[0] = f.state
		return states, nil
	case errors.Is(err, batch.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, context.Cause(ctx))
	}
	return nil, in.notFound(err)
}

// notFound returns the error of a look, after which nothing has changed.
func (in *inboxes) notFound(err error) error {
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrNoQueue):
		return err
	}
	return in.unreachable(err)
}

// findAll carries out a batch of looks, with a request for each inbox.
func (in *inboxes) findAll(finds []*find, errs []error) {
	ctx, cancel := context.WithTimeout(in.work, maxWait)
	defer cancel()
	for start := 0; start < len(finds); {
		end := start + 1
		for end < len(finds) && finds[end].inbox == finds[start].inbox {
			end++
		}
		in.findSome(ctx, finds[start:end], errs[start:end])
		start = end
	}
}

func (in *inboxes) findSome(ctx context.Context, finds []*find, errs []error) {
	keys := make([]transport.HandledKey, len(finds))
	for i, f := range finds {
		keys[i] = f.key
	}
	var states []transport.HandledState
	err := in.store.Queues.Check(finds[0].inbox)
	if err == nil {
		err = in.again(func() (err error) {
			states, err = in.store.Inboxes.FindHandled(ctx, finds[0].inbox, keys)
			return err
		})
	}
	for i, f := range finds {
		if errs[i] = err; err == nil {
			f.state = states[i]
		}
	}
}

// InspectInbox implements [transport.InboxInspector].
func (in *inboxes) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	return ask(ctx, in.core, []string{inbox}, func(ctx context.Context) (transport.InboxStats, error) {
		return in.store.Inboxes.InspectInbox(ctx, inbox)
	})
}

// ForgetHandled implements [transport.InboxInspector].
func (in *inboxes) ForgetHandled(ctx context.Context, inbox string, keys []transport.HandledKey) (int, error) {
	n, err := ask(ctx, in.core, []string{inbox}, func(ctx context.Context) (int64, error) { return in.store.Inboxes.ForgetKeys(ctx, inbox, keys) })
	return int(n), err
}

const (
	// forgetEvery is the time between two removals of old keys from an inbox, by all processes
	// together.
	forgetEvery = time.Minute
	// forgetFirst is the time from the first use of an inbox to the first try, so that programs
	// that run for less than forgetEvery remove old keys too.
	forgetFirst = time.Second
	// forgetSome is the number of rows that one transaction removes. A pause of forgetPause times
	// the duration of such a transaction follows, so that removing takes a bounded part of the
	// database.
	forgetSome  = 5000
	forgetPause = 10

	// largeInbox is the size in bytes from which on there is a warning.
	largeInbox = 20 << 30
	// forgetLate is how much older than Env.Remember the oldest key may be without a warning.
	forgetLate = time.Hour
)

// use begins to remove old keys from an inbox that is used for the first time.
func (in *inboxes) use(inbox string) error {
	if _, known := in.used.Load(inbox); known {
		return nil
	}
	if err := in.enter(); err != nil {
		return err
	}
	defer in.calls.Done()
	if _, known := in.used.LoadOrStore(inbox, nil); !known && in.cfg.Env.Remember > 0 {
		in.running.Go(func() { in.forgetOld(inbox) })
	}
	return nil
}

// forgetOld removes keys that are older than Env.Remember from an inbox until the Conn is closed.
func (in *inboxes) forgetOld(inbox string) {
	f := forgetting{
		due: func(ctx context.Context, pause time.Duration) (bool, error) {
			return in.store.Inboxes.DueForForgetting(ctx, inbox, pause)
		},
		some: func(ctx context.Context) (int64, error) {
			return in.store.Inboxes.Forget(ctx, inbox, in.cfg.Env.Remember, forgetSome)
		},
	}
	for pause := forgetFirst; backoff.Sleep(in.life, pause) == nil; pause = forgetEvery {
		err := f.once(in.life)
		if err != nil && in.life.Err() == nil {
			in.cfg.Env.Log().WarnContext(in.life, "ids of handled messages that are old enough cannot be removed: it is tried again in a minute",
				slog.String("inbox", inbox), slog.Any("error", err))
		}
	}
}

// forgetting is the removal of old rows from a table.
type forgetting struct {
	due  func(ctx context.Context, pause time.Duration) (bool, error)
	some func(ctx context.Context) (n int64, err error) // removes up to forgetSome rows
}

// once removes the rows that are old enough now, if no other process has done that lately.
func (f forgetting) once(ctx context.Context) error {
	due, err := within(ctx, func(ctx context.Context) (bool, error) { return f.due(ctx, forgetEvery-time.Second) })
	if err != nil || !due {
		return err
	}
	for {
		began := time.Now()
		n, err := within(ctx, f.some)
		if err != nil || n < forgetSome {
			return err
		}
		if err := backoff.Sleep(ctx, forgetPause*time.Since(began)); err != nil {
			return err
		}
		// Others see that the table is being cleaned up.
		if _, err := within(ctx, func(ctx context.Context) (bool, error) { return f.due(ctx, 0) }); err != nil {
			return err
		}
	}
}

// within calls fn with a bounded context.
func within[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return fn(ctx)
}

// warnings returns warnings about the inboxes that the Conn uses.
func (in *inboxes) warnings(ctx context.Context) (warnings []string, err error) {
	var inboxes []string
	in.used.Range(func(inbox, _ any) bool {
		inboxes = append(inboxes, inbox.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(inboxes)
	var errs []error
	for _, inbox := range inboxes {
		stats, err := in.store.Inboxes.InspectInbox(ctx, inbox)
		errs = append(errs, err)
		warnings = append(warnings, inboxWarning(stats, in.cfg.Env.Remember)...)
	}
	return warnings, errors.Join(errs...)
}

// inboxWarning returns what is wrong with an inbox.
func inboxWarning(stats transport.InboxStats, remember time.Duration) (warnings []string) {
	if stats.Bytes >= largeInbox {
		warnings = append(warnings, fmt.Sprintf("inbox %q has %d GiB: set Config.Remember to less, or provide for its growth",
			stats.Name, stats.Bytes>>30))
	}
	if remember > 0 && stats.Oldest > remember+forgetLate {
		warnings = append(warnings, fmt.Sprintf("ids in inbox %q are %v old and are to be removed after %v: removing them falls behind, or fails",
			stats.Name, stats.Oldest.Round(time.Minute), remember))
	}
	return warnings
}

func (in *inboxes) verify(ctx context.Context, inboxes []string) (found []transport.Finding, err error) {
	for _, inbox := range inboxes {
		err := in.store.Inboxes.InboxState(ctx, inbox)
		unfit, differs := errors.AsType[*UnfitError](err)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Missing})
		case differs:
			found = append(found, transport.Finding{Kind: "inbox", Name: inbox, State: transport.Differs, Detail: unfit.Reason})
		case err != nil:
			return found, err
		}
	}
	return found, nil
}
