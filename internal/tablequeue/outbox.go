package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/batch"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.OutboxStore     = (*Conn)(nil)
	_ transport.InboxInspector  = (*Conn)(nil)
	_ transport.HandledRecorder = (*delivery)(nil)
	_ transport.OutageDetector  = (*storeTx)(nil)
)

// maxFound is the number of keys that one request looks for.
const maxFound = 500

// find is a look for one key, in a batch with others.
type find struct {
	inbox string
	key   transport.HandledKey
	state transport.HandledState
}

// FindHandled implements [transport.OutboxStore]. The keys of concurrent calls share requests.
func (c *Conn) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	if err := c.useInbox(inbox); err != nil {
		return nil, err
	}
	states := make([]transport.HandledState, len(keys))
	if len(keys) != 1 {
		err := c.call(ctx, []string{inbox}, func(ctx context.Context) (err error) {
			for at := 0; at < len(keys) && err == nil; at += maxFound {
				var found []transport.HandledState
				found, err = c.store.FindHandled(ctx, inbox, keys[at:min(at+maxFound, len(keys))])
				copy(states[at:], found)
			}
			return err
		})
		return states, c.notFound(err)
	}
	f := &find{inbox: inbox, key: keys[0]}
	err := c.finds.Do(ctx, f)
	switch {
	case err == nil:
		states[0] = f.state
		return states, nil
	case errors.Is(err, batch.ErrClosed):
		return nil, transport.ErrClosed
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", transport.ErrUnreachable, context.Cause(ctx))
	}
	return nil, c.notFound(err)
}

// notFound returns the error of a look, after which nothing has changed.
func (c *Conn) notFound(err error) error {
	switch {
	case err == nil, errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrNoQueue):
		return err
	}
	return c.unreachable(err)
}

// findAll carries out a batch of looks, with a request for each inbox.
func (c *Conn) findAll(finds []*find, errs []error) {
	ctx, cancel := context.WithTimeout(c.work, maxWait)
	defer cancel()
	for start := 0; start < len(finds); {
		end := start + 1
		for end < len(finds) && finds[end].inbox == finds[start].inbox {
			end++
		}
		c.findSome(ctx, finds[start:end], errs[start:end])
		start = end
	}
}

func (c *Conn) findSome(ctx context.Context, finds []*find, errs []error) {
	keys := make([]transport.HandledKey, len(finds))
	for i, f := range finds {
		keys[i] = f.key
	}
	var states []transport.HandledState
	err := c.store.Check(finds[0].inbox)
	if err == nil {
		err = c.again(func() (err error) {
			states, err = c.store.FindHandled(ctx, finds[0].inbox, keys)
			return err
		})
	}
	for i, f := range finds {
		if errs[i] = err; err == nil {
			f.state = states[i]
		}
	}
}

// Store implements [transport.OutboxStore], in a batch with what others send, settle and store:
// again when subscribers to messages of e are gone.
func (c *Conn) Store(ctx context.Context, e transport.OutboxEntry) error {
	for try := 1; ; try++ {
		err := c.storeOnce(ctx, e)
		if !c.lostSubscribers(err, e.Ops) || try == maxLost {
			return err
		}
	}
}

func (c *Conn) storeOnce(ctx context.Context, e transport.OutboxEntry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := c.newWork()
	if err := c.enclose(ctx, w, e); err != nil {
		c.recycle(w)
		return err
	}
	leased := c.leaseRows(&w.unit)
	kept, err := c.do(ctx, w)
	if kept {
		leased.cancel()
		return err
	}
	if err = c.storedAs(ctx, w, err, len(e.Ops)); err == nil {
		leased.deliver(&w.unit, e.Ops)
	} else {
		leased.cancel()
	}
	c.recycle(w)
	return err
}

// enclose makes w's unit the recording of e.
func (c *Conn) enclose(ctx context.Context, w *work, e transport.OutboxEntry) error {
	if e.Key != nil {
		if err := c.useInbox(e.Inbox); err != nil {
			return err
		}
		if err := c.store.Check(e.Inbox); err != nil {
			return err
		}
	}
	w.unit.Verb, w.unit.Inbox, w.unit.Key = Record, e.Inbox, e.Key
	return dispatchError(c.addRows(ctx, w, e.Ops), len(e.Ops))
}

// storedAs returns the error of a unit that was to be recorded, of total operations.
func (c *Conn) storedAs(ctx context.Context, w *work, err error, total int) error {
	switch {
	case err == nil && len(w.failed) > 0:
		return dispatchError(w.failed, total)
	case err == nil && w.unit.Handled:
		return transport.ErrAlreadyHandled
	case err != nil:
		return c.unlocked(c.blame(ctx, err, &w.unit, total))
	}
	return nil
}

// unlocked adds [transport.ErrUnreachable] to the error of an entry that waited for a lock for too
// long, such as that of an index which is created on the inbox: the entry is not the cause.
func (c *Conn) unlocked(err error) error {
	if err != nil && c.store.Classify(err) == Locked {
		return fmt.Errorf("%w: %w", transport.ErrUnreachable, err)
	}
	return err
}

// BeginStore implements [transport.OutboxStore].
func (c *Conn) BeginStore(ctx context.Context, e transport.OutboxEntry) (transport.Tx, error) {
	inner, err := ask(ctx, c, nil, c.store.Begin)
	if err != nil {
		return nil, c.unreachable(err)
	}
	e.Ops = slices.Clone(e.Ops)
	return &storeTx{stateTx{conn: c, inner: inner}, e}, nil
}

// storeTx is a transaction for a handler's writes that belongs to no delivery of this Conn.
type storeTx struct {
	stateTx
	entry transport.OutboxEntry
}

// Complete implements [transport.Tx].
func (t *storeTx) Complete(ctx context.Context, ops []transport.Operation) error {
	c, e := t.conn, t.entry
	e.Ops = slices.Concat(e.Ops, ops)
	w := c.newWork()
	defer c.recycle(w)
	err := t.end(&w.unit)
	if err == nil {
		err = c.enclose(ctx, w, e)
	}
	if err != nil {
		return errors.Join(err, t.inner.Rollback(ctx))
	}
	leased := c.leaseRows(&w.unit)
	if err := c.complete(ctx, t.inner, &w.unit); err != nil {
		leased.cancel()
		err = c.blame(ctx, c.verdict(err), &w.unit, len(e.Ops))
		if c.lostSubscribers(err, e.Ops) || errors.Is(err, ErrNoDelays) {
			return &outdatedError{err}
		}
		return c.unlocked(err)
	}
	if w.unit.Handled {
		leased.cancel()
		return transport.ErrAlreadyHandled
	}
	leased.deliver(&w.unit, e.Ops)
	c.wakes.flushed([]*Unit{&w.unit})
	return nil
}

// Outages is implemented by a [Store] whose database may answer and take no writes.
type Outages interface {
	// Outage reports whether err, of a handler's statement, means that the database takes no
	// writes.
	Outage(ctx context.Context, err error) bool
}

// Outage implements [transport.OutageDetector].
func (t *storeTx) Outage(ctx context.Context, err error) bool {
	store, ok := t.conn.store.(Outages)
	if !ok {
		return false
	}
	out, failed := ask(ctx, t.conn, nil, func(ctx context.Context) (bool, error) { return store.Outage(ctx, err), nil })
	return failed == nil && out
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

// InspectInbox implements [transport.InboxInspector].
func (c *Conn) InspectInbox(ctx context.Context, inbox string) (transport.InboxStats, error) {
	return ask(ctx, c, []string{inbox}, func(ctx context.Context) (transport.InboxStats, error) {
		return c.store.InspectInbox(ctx, inbox)
	})
}

// ForgetHandled implements [transport.InboxInspector].
func (c *Conn) ForgetHandled(ctx context.Context, inbox string, keys []transport.HandledKey) (int, error) {
	n, err := ask(ctx, c, []string{inbox}, func(ctx context.Context) (int64, error) { return c.store.ForgetKeys(ctx, inbox, keys) })
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

// useInbox begins to remove old keys from an inbox that is used for the first time.
func (c *Conn) useInbox(inbox string) error {
	if _, known := c.inboxes.Load(inbox); known {
		return nil
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	if _, known := c.inboxes.LoadOrStore(inbox, nil); !known && c.cfg.Env.Remember > 0 {
		c.running.Go(func() { c.forgetOld(inbox) })
	}
	return nil
}

// forgetOld removes keys that are older than Env.Remember from an inbox until the Conn is closed.
func (c *Conn) forgetOld(inbox string) {
	f := forgetting{
		due: func(ctx context.Context, pause time.Duration) (bool, error) {
			return c.store.DueForForgetting(ctx, inbox, pause)
		},
		some: func(ctx context.Context) (int64, error) {
			return c.store.Forget(ctx, inbox, c.cfg.Env.Remember, forgetSome)
		},
	}
	for pause := forgetFirst; backoff.Sleep(c.life, pause) == nil; pause = forgetEvery {
		err := f.once(c.life)
		if err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().WarnContext(c.life, "ids of handled messages that are old enough cannot be removed: it is tried again in a minute",
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

// inboxWarnings returns warnings about the inboxes that the Conn uses.
func (c *Conn) inboxWarnings(ctx context.Context) (warnings []string, err error) {
	var inboxes []string
	c.inboxes.Range(func(inbox, _ any) bool {
		inboxes = append(inboxes, inbox.(string)) //nolint:errcheck // its keys are names
		return true
	})
	slices.Sort(inboxes)
	var errs []error
	for _, inbox := range inboxes {
		stats, err := c.store.InspectInbox(ctx, inbox)
		errs = append(errs, err)
		warnings = append(warnings, inboxWarning(stats, c.cfg.Env.Remember)...)
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
