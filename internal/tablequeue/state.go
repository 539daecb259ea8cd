package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.StateStore     = (*tx)(nil)
	_ transport.StateStore     = (*storeTx)(nil)
	_ transport.StateInspector = (*Conn)(nil)
)

var errTxOver = errors.New("the transaction is over")

// stateTx is the part of a transaction that loads and saves records.
type stateTx struct {
	conn  *Conn
	inner StoreTx
	set   stateset.Set
	over  bool
}

// Load implements [transport.StateStore].
func (t *stateTx) Load(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (transport.Record, error) {
	r, err := t.load(ctx, id, create)
	return r, t.set.Fail(err)
}

func (t *stateTx) load(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (r transport.Record, err error) {
	if t.over {
		return r, errTxOver
	}
	if r, known, err := t.set.Load(id, create); known {
		return r, err
	}
	if err := t.conn.useRecords(); err != nil {
		return r, err
	}
	inner, ok := t.inner.(RecordTx)
	if !ok {
		return r, errNoRecords
	}
	r, err = ask(ctx, t.conn, nil, func(ctx context.Context) (transport.Record, error) { return inner.LoadRecord(ctx, id, create) })
	if err != nil {
		return transport.Record{}, t.conn.recordError(err)
	}
	t.set.Add(r)
	return stateset.Copy(r), nil
}

// Save implements [transport.StateStore]. The record is written when the transaction completes.
func (t *stateTx) Save(_ context.Context, r transport.Record) error {
	if t.over {
		return errTxOver
	}
	return t.set.Fail(t.set.Save(r, t.conn.Now()))
}

// Remove implements [transport.StateStore].
func (t *stateTx) Remove(ctx context.Context, id transport.RecordID) error {
	_, err := t.load(ctx, id, nil)
	switch {
	case errors.Is(err, transport.ErrNoRecord):
		return nil
	case err == nil:
		t.set.Remove(id)
	}
	return t.set.Fail(err)
}

// end ends the use of records, and adds the changes to u. The error is one after which the
// transaction can only be rolled back.
func (t *stateTx) end(u *Unit) error {
	t.over = true
	u.Records = t.set.Changes()
	return t.set.Err()
}

// Rollback implements [transport.Tx].
func (t *stateTx) Rollback(ctx context.Context) error {
	t.over = true
	if err := t.inner.Rollback(ctx); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// Conflict implements [transport.ConflictDetector].
func (t *stateTx) Conflict(err error) bool { return t.conn.conflict(t.inner, err) }

// recordError returns the error of a statement about records, after which nothing was written.
func (c *Conn) recordError(err error) error {
	if err == nil || errors.Is(err, transport.ErrNoRecord) || errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrNoQueue) {
		return err
	}
	if class := c.store.Classify(err); class == Conflict || class == Locked {
		return fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return c.unreachable(err)
}

var errNoRecords = errors.New("the driver stores no records of handlers with state: use PostgreSQL, SQLite or SQL Server, for Config.Outbox or as the transport")

func (c *Conn) records() (Records, error) {
	if records, ok := c.store.(Records); ok {
		return records, nil
	}
	return nil, errNoRecords
}

// inspect is [ask] of the table of records.
func inspect[T any](ctx context.Context, c *Conn, fn func(context.Context, Records) (T, error)) (T, error) {
	v, err := ask(ctx, c, nil, func(ctx context.Context) (v T, err error) {
		records, err := c.records()
		if err != nil {
			return v, err
		}
		return fn(ctx, records)
	})
	return v, c.recordError(err)
}

// InspectRecords implements [transport.StateInspector].
func (c *Conn) InspectRecords(ctx context.Context, kind string) (transport.RecordStats, error) {
	return inspect(ctx, c, func(ctx context.Context, records Records) (transport.RecordStats, error) {
		return records.InspectRecords(ctx, kind)
	})
}

// Records implements [transport.StateInspector].
func (c *Conn) Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error) {
	return inspect(ctx, c, func(ctx context.Context, records Records) ([]transport.Record, error) {
		return records.Records(ctx, p)
	})
}

// Record implements [transport.StateInspector].
func (c *Conn) Record(ctx context.Context, id transport.RecordID) (transport.Record, error) {
	return inspect(ctx, c, func(ctx context.Context, records Records) (transport.Record, error) {
		return records.Record(ctx, id)
	})
}

// RemoveRecord implements [transport.StateInspector].
func (c *Conn) RemoveRecord(ctx context.Context, id transport.RecordID) error {
	inner, err := ask(ctx, c, nil, c.store.Begin)
	if err != nil {
		return c.unreachable(err)
	}
	t := &stateTx{conn: c, inner: inner}
	u := Unit{Verb: Record}
	if _, err = t.Load(ctx, id, nil); err == nil {
		t.set.Remove(id)
		if err = t.end(&u); err == nil {
			if err = c.complete(ctx, inner, &u); err != nil {
				err = c.verdict(err)
			}
			return err
		}
	}
	return errors.Join(err, t.Rollback(ctx))
}

// useRecords begins to remove old records when a transaction uses records for the first time.
func (c *Conn) useRecords() error {
	if c.forgetsRecords.Load() {
		return nil
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.calls.Done()
	records, err := c.records()
	if err == nil && c.forgetsRecords.CompareAndSwap(false, true) {
		c.running.Go(func() { c.forgetRecords(records) })
	}
	return err
}

// forgetRecords removes ended records whose time is over until the Conn is closed.
func (c *Conn) forgetRecords(records Records) {
	f := forgetting{due: records.DueForForgettingRecords, some: func(ctx context.Context) (int64, error) {
		return records.ForgetRecords(ctx, forgetSome)
	}}
	for pause := forgetFirst; backoff.Sleep(c.life, pause) == nil; pause = forgetEvery {
		err := f.once(c.life)
		if err != nil && c.life.Err() == nil {
			c.cfg.Env.Log().WarnContext(c.life, "records that have ended cannot be removed: it is tried again in a minute", slog.Any("error", err))
		}
	}
}
