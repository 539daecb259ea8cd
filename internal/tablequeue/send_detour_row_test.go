package tablequeue

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// lockedRowFake is a fake in which another transaction has locked a message's row.
type lockedRowFake struct {
	*impededFake
	row atomic.Int64 // its seq; 0: none
}

func (f *lockedRowFake) parts() Store {
	s := f.impededFake.parts()
	s.Queues, s.Locks = f, f
	return s
}

func (f *lockedRowFake) Flush(ctx context.Context, units []*Unit) error {
	return f.unlessLocked(units, 100*time.Millisecond, func() error { return f.impededFake.Flush(ctx, units) })
}

func (f *lockedRowFake) FlushWaiting(ctx context.Context, units []*Unit) error {
	return f.unlessLocked(units, time.Second, func() error { return f.impededFake.FlushWaiting(ctx, units) })
}

func (f *lockedRowFake) unlessLocked(units []*Unit, wait time.Duration, flush func() error) error {
	time.Sleep(10 * time.Millisecond) // in which a batch gathers
	for _, u := range units {
		if row := f.row.Load(); row != 0 && u.Lease.Seq == row {
			time.Sleep(wait)
			return &StatementError{Units: units, Err: errLock}
		}
	}
	return flush()
}

// A locked row of one message is not taken for a queue that takes no messages.
func TestALockedRowBlamesNoQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &lockedRowFake{impededFake: newImpededFake("in", "out")}
		c := open(t, f)
		ds := claimed(t, c, 40)
		f.row.Store(ds[11].(*delivery).lease.Seq)
		for i, err := range completeAll(t, ds, func(int) string { return "out" }) {
			if i == 11 {
				isBusy(t, err, "in")
			} else if err != nil {
				t.Errorf("delivery %d: %v", i, err)
			}
		}
		if _, err := c.Dispatch(t.Context(), []transport.Operation{op("out", "x")}); err != nil || len(c.Warnings()) > 0 {
			t.Errorf("error %v, warnings %q", err, c.Warnings())
		}
	})
}

// A locked table of the settled rows fails all of them, within a bounded time.
func TestLockedRowsFailWithinABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &lockedRowFake{impededFake: newImpededFake("in", "out")}
		c := open(t, f)
		ds := claimed(t, c, 40)
		all := lockedTable{f}
		c.store.Queues, c.store.Locks = all, all
		began := time.Now()
		for _, err := range completeAll(t, ds, func(int) string { return "out" }) {
			isBusy(t, err, "in")
		}
		if took := time.Since(began); took > 4*detourFails*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// lockedTable is a store in which all rows are locked.
type lockedTable struct{ *lockedRowFake }

func (f lockedTable) Flush(context.Context, []*Unit) error {
	time.Sleep(100 * time.Millisecond)
	return errLock
}

func (f lockedTable) FlushWaiting(context.Context, []*Unit) error {
	time.Sleep(time.Second)
	return errLock
}
