package transporttest

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/transport"
)

// states are records of a kind of the rule's own.
type states struct {
	t    *test
	conn transport.Conn
	kind string
}

// states installs the table of records.
func (t *test) states(c transport.Conn) states {
	t.Helper()
	s := states{t, c, t.name("kind")}
	t.must("Install", as[transport.Installer](t, c).Install(t.ctx(), transport.Plan{Records: []string{s.kind}}))
	return s
}

// name returns the name and id of the nth record.
func (s states) name(n int) (transport.RecordID, *transport.RecordName) {
	id := transport.RecordID(key(n).ID)
	return id, &transport.RecordName{Kind: s.kind, Key: "key-" + strconv.Itoa(n)}
}

// begin begins a transaction with an entry.
func (s states) begin(e transport.OutboxEntry) (transport.Tx, transport.StateStore) {
	s.t.Helper()
	tx, err := as[transport.OutboxStore](s.t, s.conn).BeginStore(s.t.ctx(), e)
	s.t.must("BeginStore", err)
	return tx, as[transport.StateStore](s.t, tx)
}

// in calls f in a transaction, which must be committed.
func (s states) in(f func(store transport.StateStore)) {
	s.t.Helper()
	tx, store := s.begin(transport.OutboxEntry{})
	f(store)
	s.t.must("Complete", tx.Complete(s.t.ctx(), nil))
}

// load loads a record, which is created where it is missing.
func (s states) load(store transport.StateStore, n int) transport.Record {
	s.t.Helper()
	id, name := s.name(n)
	r, err := store.Load(s.t.ctx(), id, name)
	s.t.must("Load", err)
	return r
}

// save loads a record and saves it with a state.
func (s states) save(store transport.StateStore, n int, state string) {
	s.t.Helper()
	r := s.load(store, n)
	r.State, r.Status = []byte(state), transport.RecordActive
	s.t.must("Save", store.Save(s.t.ctx(), r))
}

// is checks a record in a transaction of its own, which changes nothing.
func (s states) is(n int, want transport.RecordStatus, version int64, state string) transport.Record {
	s.t.Helper()
	tx, store := s.begin(transport.OutboxEntry{})
	defer func() { s.t.do("Rollback", tx.Rollback) }()
	id, name := s.name(n)
	r, err := store.Load(s.t.ctx(), id, nil)
	if want == transport.RecordNew {
		s.t.fails("Load of a record that does not exist", err, transport.ErrNoRecord)
		return r
	}
	s.t.must("Load", err)
	if r.ID != id || r.Name != *name || r.Status != want || r.Version != version || string(r.State) != state {
		s.t.Errorf("the record is %+v with the state %s, want status %d, version %d and state %s", r, r.State, want, version, state)
	}
	return r
}

// count adds one to the first record.
func (s states) count() {
	ctx := s.t.ctx()
	for {
		err := s.tryToCount(ctx)
		switch {
		case err == nil:
			return
		case !errors.Is(err, transport.ErrConflict) || ctx.Err() != nil:
			s.t.Errorf("a transaction: %v", err)
			return
		}
	}
}

func (s states) tryToCount(ctx context.Context) error {
	tx, err := s.conn.(transport.OutboxStore).BeginStore(ctx, transport.OutboxEntry{}) //nolint:errcheck // seen before
	if err != nil {
		return err
	}
	store := tx.(transport.StateStore) //nolint:errcheck // seen before
	id, name := s.name(1)
	r, err := store.Load(ctx, id, name)
	if err == nil {
		n, _ := strconv.Atoi(string(r.State)) // 0 of a new record
		r.State = []byte(strconv.Itoa(n + 1))
		err = store.Save(ctx, r)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return conflicting(tx, tx.Complete(ctx, nil))
}

// conflicting returns err as a conflict where the driver says that it is one.
func conflicting(tx transport.Tx, err error) error {
	if d, ok := tx.(transport.ConflictDetector); err != nil && ok && d.Conflict(err) {
		return fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return err
}

// replace removes the first record and creates it again.
func (s states) replace() error {
	id, name := s.name(1)
	for _, step := range []func(store transport.StateStore) error{
		func(store transport.StateStore) error { return store.Remove(s.t.ctx(), id) },
		func(store transport.StateStore) error {
			r, err := store.Load(s.t.ctx(), id, name)
			if err != nil {
				return err
			}
			r.State = []byte(`"new"`)
			return store.Save(s.t.ctx(), r)
		},
	} {
		tx, err := s.conn.(transport.OutboxStore).BeginStore(s.t.ctx(), transport.OutboxEntry{}) //nolint:errcheck // seen before
		if err != nil {
			return err
		}
		if err := step(tx.(transport.StateStore)); err != nil { //nolint:errcheck // seen before
			return errors.Join(err, tx.Rollback(s.t.ctx()))
		}
		if err := conflicting(tx, tx.Complete(s.t.ctx(), nil)); err != nil {
			return err
		}
	}
	return nil
}
