package transporttest

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"sync"

	"github.com/holdfast-go/holdfast/transport"
)

// loading changes the records that Load returns.
func loading(change func(r *transport.Record)) func(*faulty) {
	return func(f *faulty) {
		f.states.load = func(
			ctx context.Context, tx *faultyStoreTx, id transport.RecordID, create *transport.RecordName,
		) (transport.Record, error) {
			r, err := tx.states().Load(ctx, id, create)
			if err == nil {
				change(&r)
			}
			return r, err
		}
	}
}

// saving changes the records that are saved.
func saving(change func(r *transport.Record)) func(*faulty) {
	return func(f *faulty) {
		f.states.save = func(ctx context.Context, tx *faultyStoreTx, r transport.Record) error {
			change(&r)
			return tx.states().Save(ctx, r)
		}
	}
}

// savesLater are the saves of transactions whose driver keeps a reference to the record.
func savesLater(f *faulty) {
	var mu sync.Mutex
	kept := map[*faultyStoreTx][]transport.Record{}
	f.states.save = func(ctx context.Context, tx *faultyStoreTx, r transport.Record) error {
		mu.Lock()
		defer mu.Unlock()
		kept[tx] = append(kept[tx], r)
		return tx.states().Save(ctx, r)
	}
	f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range kept[tx] {
			if err := tx.states().Save(ctx, r); err != nil {
				return err
			}
		}
		return tx.Tx.Complete(ctx, ops)
	}
}

// unlocked is a store of records whose transactions neither lock nor compare: the last one to
// commit wins. It keeps its records in memory.
func unlocked(f *faulty) {
	var mu sync.Mutex
	stored := map[transport.RecordID]transport.Record{}
	begun := map[*faultyStoreTx]map[transport.RecordID]transport.Record{}
	f.states.load = func(
		_ context.Context, tx *faultyStoreTx, id transport.RecordID, create *transport.RecordName,
	) (transport.Record, error) {
		for range 10 { // so that others load the record too
			runtime.Gosched()
		}
		mu.Lock()
		defer mu.Unlock()
		r, ok := begun[tx][id]
		if !ok {
			r, ok = stored[id]
		}
		switch {
		case !ok && create == nil:
			return r, transport.ErrNoRecord
		case !ok:
			return transport.Record{ID: id, Name: *create}, nil
		}
		return r, nil
	}
	f.states.save = func(_ context.Context, tx *faultyStoreTx, r transport.Record) error {
		for range 10 {
			runtime.Gosched()
		}
		mu.Lock()
		defer mu.Unlock()
		if begun[tx] == nil {
			begun[tx] = map[transport.RecordID]transport.Record{}
		}
		r.Version, r.Status = r.Version+1, transport.RecordActive
		begun[tx][r.ID] = r
		return nil
	}
	f.states.remove = func(_ context.Context, _ *faultyStoreTx, id transport.RecordID) error {
		mu.Lock()
		defer mu.Unlock()
		delete(stored, id)
		return nil
	}
	f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
		mu.Lock()
		defer mu.Unlock()
		if err := tx.Tx.Complete(ctx, ops); err != nil {
			return err
		}
		maps.Copy(stored, begun[tx])
		return nil
	}
}

var stateMutants = []mutant{
	{"state-create", "a record that was not saved is stored", func(f *faulty) {
		f.states.load = func(
			ctx context.Context, tx *faultyStoreTx, id transport.RecordID, create *transport.RecordName,
		) (transport.Record, error) {
			r, err := tx.states().Load(ctx, id, create)
			if err == nil && r.Status == transport.RecordNew {
				err = tx.states().Save(ctx, r)
			}
			return r, err
		}
	}},
	{"state-create", "the state is normalized", saving(func(r *transport.Record) { r.State = []byte(`{}`) })},
	{"state-create", "the meta is lost", saving(func(r *transport.Record) { r.Meta = nil })},
	{"state-change", "Load returns the record of the database", func(f *faulty) {
		first := map[*faultyStoreTx]transport.Record{}
		f.states.load = func(
			ctx context.Context, tx *faultyStoreTx, id transport.RecordID, create *transport.RecordName,
		) (transport.Record, error) {
			r, err := tx.states().Load(ctx, id, create)
			if known, ok := first[tx]; ok {
				known.State = append([]byte(nil), known.State...)
				return known, err
			}
			first[tx] = r
			return r, err
		}
	}},
	{"state-rollback", "Rollback commits", func(f *faulty) {
		f.rollbackTx = func(ctx context.Context, tx *faultyStoreTx) error {
			_ = tx.Tx.Complete(ctx, nil) // it may be over
			return nil
		}
	}},
	{"state-copy", "the driver keeps a reference to the state", savesLater},
	{"state-not-loaded", "a record that was not loaded is saved", func(f *faulty) {
		f.states.save = func(ctx context.Context, tx *faultyStoreTx, r transport.Record) error {
			if _, err := tx.states().Load(ctx, r.ID, &r.Name); err != nil {
				return err
			}
			return tx.states().Save(ctx, r)
		}
	}},
	{"state-at-once", "records are neither locked nor compared", unlocked},
	{"state-unchanged", "records are neither locked nor compared", unlocked},
	{"state-ended", "an ended record keeps its state", loading(func(r *transport.Record) {
		if r.Status == transport.RecordEnded {
			r.State = []byte(`1`)
		}
	})},
	{"state-ended", "an ended record is new where it may be created", loading(func(r *transport.Record) {
		if r.Status == transport.RecordEnded {
			r.Status = transport.RecordNew
		}
	})},
	{"state-removed", "Remove does nothing", func(f *faulty) {
		f.states.remove = func(context.Context, *faultyStoreTx, transport.RecordID) error { return nil }
	}},
	{"state-removed", "removing an unknown record is an error", func(f *faulty) {
		f.states.remove = func(ctx context.Context, tx *faultyStoreTx, id transport.RecordID) error {
			if _, err := tx.states().Load(ctx, id, nil); err != nil {
				return err
			}
			return tx.states().Remove(ctx, id)
		}
	}},
	{"state-again", "records are neither locked nor compared", unlocked},
	{"state-with-entry", "the record is committed before the operations", func(f *faulty) {
		f.completeTx = func(ctx context.Context, tx *faultyStoreTx, ops []transport.Operation) error {
			if err := tx.Tx.Complete(ctx, nil); err != nil || len(ops) == 0 {
				return err
			}
			_, err := tx.c.sound.Dispatch(ctx, ops)
			return err
		}
	}},
	{"state-page", "a page begins with the key before it", func(f *faulty) {
		f.states.records = func(ctx context.Context, c *faultyConn, p transport.RecordPage) ([]transport.Record, error) {
			if len(p.After) > 1 {
				p.After = p.After[:len(p.After)-1]
			}
			return c.sound.Records(ctx, p)
		}
	}},
	{"state-page", "a page has the records of other kinds", func(f *faulty) {
		f.states.records = func(ctx context.Context, c *faultyConn, p transport.RecordPage) ([]transport.Record, error) {
			page, err := c.sound.Records(ctx, p)
			if err == nil && len(page) == 0 {
				p.Kind, p.After = p.Kind+"%", ""
				return c.sound.Records(ctx, p)
			}
			return page, err
		}
	}},
	{"state-inspect", "ended records are counted as active", func(f *faulty) {
		f.states.inspectRecords = func(stats transport.RecordStats, err error) (transport.RecordStats, error) {
			stats.Active += stats.Ended
			return stats, err
		}
	}},
	{"state-inspect", "RemoveRecord of an unknown record is no error", func(f *faulty) {
		f.states.removeRecord = func(ctx context.Context, c *faultyConn, id transport.RecordID) error {
			err := c.sound.RemoveRecord(ctx, id)
			if errors.Is(err, transport.ErrNoRecord) {
				return nil
			}
			return err
		}
	}},
	{"state-missing", "a missing table has no records", func(f *faulty) {
		f.states.records = func(ctx context.Context, c *faultyConn, p transport.RecordPage) ([]transport.Record, error) {
			page, err := c.sound.Records(ctx, p)
			if errors.Is(err, transport.ErrNoQueue) {
				return nil, nil
			}
			return page, err
		}
	}},
}
