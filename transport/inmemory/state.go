package inmemory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ transport.StateStore     = (*tx)(nil)
	_ transport.StateInspector = (*conn)(nil)
)

// lockWait is the time for which a transaction waits for a record that another one has locked.
const lockWait = 5 * time.Second

// records is the table of records, guarded by broker.mu. Ended records whose time is over are
// removed before each access.
type records struct {
	byID  map[transport.RecordID]*record
	ended []transport.RecordID // of records that have ended; they may be gone, or active again
}

// record is a stored record, or the place of one that a transaction creates.
type record struct {
	stored *transport.Record // nil until a transaction has committed it
	forget time.Time         // when it is removed, if it has ended
	holder *tx               // that has it locked; nil: none
	freed  chan struct{}     // closed when holder is over
}

// forget removes the ended records whose time is over, except locked ones.
func (rs *records) forget(now time.Time) {
	rs.ended = slices.DeleteFunc(rs.ended, func(id transport.RecordID) bool {
		r := rs.byID[id]
		if r == nil || r.stored == nil || r.stored.Status != transport.RecordEnded {
			return true
		}
		if r.holder != nil || r.forget.After(now) {
			return false
		}
		delete(rs.byID, id)
		return true
	})
}

// free ends the lock that t has on a record.
func (rs *records) free(t *tx, id transport.RecordID) {
	r := rs.byID[id]
	if r == nil || r.holder != t {
		return
	}
	r.holder = nil
	close(r.freed)
	if r.stored == nil {
		delete(rs.byID, id)
	}
}

// freeAll ends the locks of the transactions of a connection.
func (rs *records) freeAll(c *core) {
	for id, r := range rs.byID {
		if r.holder != nil && r.holder.core == c {
			rs.free(r.holder, id)
		}
	}
}

// Load implements [transport.StateStore]. It waits for the transaction that has locked the record.
func (t *tx) Load(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (transport.Record, error) {
	r, err := t.load(ctx, id, create)
	return r, t.set.Fail(err)
}

func (t *tx) load(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (r transport.Record, err error) {
	var deadline <-chan time.Time
	for {
		var busy <-chan struct{}
		err := t.call(ctx, "Load", id, func(table *records) (err error) {
			known := false
			if busy = t.lock(table, id, create); busy != nil {
				return nil
			}
			if r, known, err = t.set.Load(id, create); !known {
				return transport.ErrNoRecord
			}
			return err
		})
		if err != nil || busy == nil {
			return r, err
		}
		if deadline == nil {
			timer := time.NewTimer(lockWait)
			defer timer.Stop()
			deadline = timer.C
		}
		select {
		case <-busy:
		case <-deadline:
			return r, fmt.Errorf("inmemory: record %s is locked: %w", uuid.Text(id), transport.ErrConflict)
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
}

// lock adds a record to t's set if it exists or is to be created, or returns a channel that is
// closed when another transaction no longer has it locked. As in databases, a record that another
// transaction is creating does not exist for those that create none. The broker is locked.
func (t *tx) lock(table *records, id transport.RecordID, create *transport.RecordName) (busy <-chan struct{}) {
	if _, known, _ := t.set.Load(id, create); known {
		return nil
	}
	r := table.byID[id]
	switch {
	case create == nil && (r == nil || r.stored == nil):
		return nil
	case r == nil:
		r = &record{}
		table.byID[id] = r
	case r.holder != nil:
		return r.freed
	}
	r.holder, r.freed = t, make(chan struct{})
	if r.stored != nil {
		t.set.Add(stateset.Copy(*r.stored))
	} else {
		t.set.Add(transport.Record{ID: id, Name: *create})
	}
	return nil
}

// Save implements [transport.StateStore].
func (t *tx) Save(ctx context.Context, r transport.Record) error {
	return t.set.Fail(t.call(ctx, "Save", r.ID, func(*records) error { return t.set.Save(r, time.Now()) }))
}

// Remove implements [transport.StateStore].
func (t *tx) Remove(ctx context.Context, id transport.RecordID) error {
	_, err := t.load(ctx, id, nil)
	if errors.Is(err, transport.ErrNoRecord) {
		return nil
	}
	if err == nil {
		err = t.call(ctx, "Remove", id, func(*records) error {
			t.set.Remove(id)
			return nil
		})
	}
	return t.set.Fail(err)
}

// call calls f with the broker locked, unless the call is refused or t is over.
func (t *tx) call(ctx context.Context, verb string, id transport.RecordID, f func(*records) error) error {
	return t.core.call(ctx, verb, uuid.Text(id), func() error {
		if t.isOver() {
			return errTxOver
		}
		table, err := t.core.b.table()
		if err != nil {
			return err
		}
		return f(table)
	})
}

// store writes t's records. The broker is locked, and Conn.Close has not freed them.
func (t *tx) store() {
	now, table := time.Now(), t.core.b.records
	for _, c := range t.set.Changes() {
		r := table.byID[c.Record.ID]
		switch c.Verb {
		case stateset.Keep:
		case stateset.Remove:
			r.stored = nil
		case stateset.Store:
			stored := c.Record
			if stored.Version == 1 {
				stored.Started = now
			}
			stored.Changed, stored.Keep = now, 0
			r.stored = &stored
			if stored.Status == transport.RecordEnded {
				r.forget = now.Add(c.Record.Keep)
				table.ended = append(table.ended, stored.ID)
			}
		}
	}
}

// free ends t's locks.
func (t *tx) free() {
	if len(t.set.Changes()) == 0 {
		return
	}
	t.core.b.mu.Lock()
	defer t.core.b.mu.Unlock()
	for _, c := range t.set.Changes() {
		t.core.b.records.free(t, c.Record.ID)
	}
}

// recordStore is the part of a conn with the records of handlers.
type recordStore struct{ *core }

// InspectRecords implements [transport.StateInspector].
func (rs *recordStore) InspectRecords(ctx context.Context, kind string) (stats transport.RecordStats, err error) {
	err = rs.records(ctx, "InspectRecords", kind, func(table *records) error {
		for _, r := range table.of(kind) {
			if r.Status == transport.RecordEnded {
				stats.Ended++
				continue
			}
			stats.Active++
			stats.Oldest = max(stats.Oldest, time.Since(r.Changed))
		}
		return nil
	})
	return stats, err
}

// Records implements [transport.StateInspector].
func (rs *recordStore) Records(ctx context.Context, p transport.RecordPage) (found []transport.Record, err error) {
	err = rs.records(ctx, "Records", p.Kind, func(table *records) error {
		for _, r := range table.of(p.Kind) {
			if r.Name.Key > p.After && len(found) < p.Limit {
				found = append(found, stateset.Copy(*r))
			}
		}
		return nil
	})
	return found, err
}

// Record implements [transport.StateInspector].
func (rs *recordStore) Record(ctx context.Context, id transport.RecordID) (found transport.Record, err error) {
	err = rs.records(ctx, "Record", uuid.Text(id), func(table *records) error {
		r := table.byID[id]
		if r == nil || r.stored == nil {
			return transport.ErrNoRecord
		}
		found = stateset.Copy(*r.stored)
		return nil
	})
	return found, err
}

// RemoveRecord implements [transport.StateInspector].
func (rs *recordStore) RemoveRecord(ctx context.Context, id transport.RecordID) error {
	t := &tx{core: rs.core}
	defer t.free()
	if _, err := t.load(ctx, id, nil); err != nil {
		return err
	}
	t.set.Remove(id)
	return rs.records(ctx, "RemoveRecord", uuid.Text(id), func(*records) error {
		t.store()
		return nil
	})
}

// records calls f with the broker locked, unless the call is refused.
func (rs *recordStore) records(ctx context.Context, verb, object string, f func(*records) error) error {
	return rs.call(ctx, verb, object, func() error {
		table, err := rs.b.table()
		if err != nil {
			return err
		}
		return f(table)
	})
}

// of returns the stored records of a kind, in the order of their keys.
func (rs *records) of(kind string) (all []*transport.Record) {
	for _, r := range rs.byID {
		if r.stored != nil && r.stored.Name.Kind == kind {
			all = append(all, r.stored)
		}
	}
	slices.SortFunc(all, func(a, b *transport.Record) int { return strings.Compare(a.Name.Key, b.Name.Key) })
	return all
}
