package tablequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.StateStore = (*tx)(nil)

// records finds, lists and removes the records of handlers with state.
type records struct {
	*core

	forgets atomic.Bool // removes old records
}

// errorOf returns the error of a statement about records, after which nothing was written.
func (r *records) errorOf(err error) error {
	if err == nil || errors.Is(err, transport.ErrNoRecord) || errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrNoQueue) {
		return err
	}
	if class := r.store.Classify(err); class == Conflict || class == Locked {
		return fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return r.unreachable(err)
}

var errNoRecords = errors.New("the driver stores no records of handlers with state: use PostgreSQL, SQLite or SQL Server, for Config.Outbox or as the transport")

func (r *records) table() (Records, error) {
	if r.store.Records == nil {
		return nil, errNoRecords
	}
	return r.store.Records, nil
}

// inspect is [ask] of the table of records.
func inspect[T any](ctx context.Context, r *records, fn func(context.Context, Records) (T, error)) (T, error) {
	v, err := ask(ctx, r.core, nil, func(ctx context.Context) (v T, err error) {
		records, err := r.table()
		if err != nil {
			return v, err
		}
		return fn(ctx, records)
	})
	return v, r.errorOf(err)
}

// InspectRecords implements [transport.StateInspector].
func (r *records) InspectRecords(ctx context.Context, kind string) (transport.RecordStats, error) {
	return inspect(ctx, r, func(ctx context.Context, records Records) (transport.RecordStats, error) {
		return records.InspectRecords(ctx, kind)
	})
}

// Records implements [transport.StateInspector].
func (r *records) Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error) {
	return inspect(ctx, r, func(ctx context.Context, records Records) ([]transport.Record, error) {
		return records.Records(ctx, p)
	})
}

// Record implements [transport.StateInspector].
func (r *records) Record(ctx context.Context, id transport.RecordID) (transport.Record, error) {
	return inspect(ctx, r, func(ctx context.Context, records Records) (transport.Record, error) {
		return records.Record(ctx, id)
	})
}

// RemoveRecord implements [transport.StateInspector].
func (r *records) RemoveRecord(ctx context.Context, id transport.RecordID) error {
	inner, err := ask(ctx, r.core, nil, r.store.Transactions.Begin)
	if err != nil {
		return r.unreachable(err)
	}
	t := &stateTx{records: r, inner: inner}
	u := Unit{Verb: Record}
	if _, err = t.Load(ctx, id, nil); err == nil {
		t.set.Remove(id)
		if err = t.end(&u); err == nil {
			if err = r.complete(ctx, inner, &u); err != nil {
				err = r.verdict(err)
			}
			return err
		}
	}
	return errors.Join(err, t.Rollback(ctx))
}

// use begins to remove old records when a transaction uses records for the first time.
func (r *records) use() error {
	if r.forgets.Load() {
		return nil
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.calls.Done()
	records, err := r.table()
	if err == nil && r.forgets.CompareAndSwap(false, true) {
		r.running.Go(func() { r.forgetOld(records) })
	}
	return err
}

// forgetOld removes ended records whose time is over until the Conn is closed.
func (r *records) forgetOld(records Records) {
	f := forgetting{due: records.DueForForgettingRecords, some: func(ctx context.Context) (int64, error) {
		return records.ForgetRecords(ctx, forgetSome)
	}}
	for pause := forgetFirst; backoff.Sleep(r.life, pause) == nil; pause = forgetEvery {
		err := f.once(r.life)
		if err != nil && r.life.Err() == nil {
			r.cfg.Env.Log().WarnContext(r.life, "records that have ended cannot be removed: it is tried again in a minute", slog.Any("error", err))
		}
	}
}

func (r *records) verify(ctx context.Context) (found []transport.Finding, err error) {
	records, err := r.table()
	if err != nil {
		return nil, err
	}
	err = records.RecordsState(ctx)
	unfit, differs := errors.AsType[*UnfitError](err)
	switch {
	case errors.Is(err, transport.ErrNoQueue):
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Missing}}, nil
	case differs:
		return []transport.Finding{{Kind: "table", Name: "records", State: transport.Differs, Detail: unfit.Reason}}, nil
	}
	return nil, err
}

var errTxOver = errors.New("the transaction is over")

// stateTx is the part of a transaction that loads and saves records.
type stateTx struct {
	records *records
	inner   StoreTx
	set     stateset.Set
	over    bool
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
	if err := t.records.use(); err != nil {
		return r, err
	}
	inner, ok := t.inner.(RecordTx)
	if !ok {
		return r, errNoRecords
	}
	r, err = ask(ctx, t.records.core, nil, func(ctx context.Context) (transport.Record, error) { return inner.LoadRecord(ctx, id, create) })
	if err != nil {
		return transport.Record{}, t.records.errorOf(err)
	}
	t.set.Add(r)
	return stateset.Copy(r), nil
}

// Save implements [transport.StateStore]. The record is written when the transaction completes.
func (t *stateTx) Save(_ context.Context, r transport.Record) error {
	if t.over {
		return errTxOver
	}
	return t.set.Fail(t.set.Save(r, t.records.now()))
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
func (t *stateTx) Conflict(err error) bool { return t.records.conflict(t.inner, err) }
