package transporttest

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var stateRules = []rule{
	newRule("state-create", stateCreate,
		"Load of an unknown record fails with ErrNoRecord, or returns a new one with its name. The new record is stored when "+
			"it was saved and the transaction completes, byte for byte and with version 1.", storing, stateful),
	newRule("state-change", stateChange,
		"A transaction that loads a record again sees what it saved. Several saves are one change, which raises the version "+
			"by one.", storing, stateful),
	newRule("state-rollback", stateRollback,
		"After a rollback a record is as before, and a new one does not exist.", storing, stateful),
	newRule("state-copy", stateCopy,
		"The driver keeps no reference to a record that is saved, and returns one that the caller owns.", storing, stateful),
	newRule("state-not-loaded", stateNotLoaded,
		"Save of a record that the transaction has not loaded is an error.", storing, stateful),
	newRule("state-at-once", stateAtOnce,
		"Concurrent transactions that create and change one record, and are repeated after ErrConflict, lose no change.",
		storing, stateful),
	newRule("state-unchanged", stateUnchanged,
		"No other transaction changes a record between its Load and the end of the transaction, even if the transaction "+
			"does not save it: the other waits, or one of the two fails with ErrConflict.", storing, stateful),
	newRule("state-ended", stateEnded,
		"A record that has ended keeps its Meta and has no State. Load returns it also where it may create one. It becomes "+
			"active again when it is saved so.", storing, stateful),
	newRule("state-removed", stateRemoved,
		"A removed record does not exist, also within the transaction. One with the same id can be created in the same "+
			"transaction or later, with version 1. Removing an unknown record is no error.", storing, stateful),
	newRule("state-again", stateAgain,
		"A transaction that has loaded a record does not change another one with the same id, which was created after the "+
			"first was removed.", storing, stateful),
	newRule("state-with-entry", stateWithEntry,
		"Records are committed together with the key and the operations of the transaction, and with none of them if an "+
			"operation is refused.", storing, stateful),
	newRule("state-page", statePage,
		"Records returns the records of one kind in pages, each once, in a fixed order. Kinds and keys are any UTF-8, also "+
			"with NUL, wildcards and quotation marks, and are compared bytewise.", storing, stateful, inspectingState),
	newRule("state-inspect", stateInspect,
		"InspectRecords counts the active and the ended records of a kind. RemoveRecord removes one record, and fails with "+
			"ErrNoRecord for an unknown one.", storing, stateful, inspectingState),
	newRule("state-missing", stateMissing,
		"Without the table of records each method fails with ErrNoQueue.", storing, stateful, inspectingState),
}

const oddState = `{"a":"\u0000 ü",  "n":12345678901234567890.10}`

func stateCreate(t *test) {
	s := t.states(t.open())
	s.is(1, transport.RecordNew, 0, "")
	s.in(func(store transport.StateStore) {
		r := s.load(store, 1)
		id, name := s.name(1)
		if r.ID != id || r.Name != *name || r.Status != transport.RecordNew || r.State != nil || r.Meta != nil {
			t.Errorf("a new record is %+v", r)
		}
	})
	s.is(1, transport.RecordNew, 0, "")
	before := time.Now().Add(-time.Minute)
	s.in(func(store transport.StateStore) {
		r := s.load(store, 1)
		r.State, r.Meta = []byte(oddState), []byte(`{"m": 1}`)
		t.must("Save", store.Save(t.ctx(), r))
	})
	r := s.is(1, transport.RecordActive, 1, oddState)
	if string(r.Meta) != `{"m": 1}` || r.Started.Before(before) || r.Changed.Before(r.Started) {
		t.Errorf("the record is %+v with the meta %s", r, r.Meta)
	}
}

func stateChange(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) { s.save(store, 1, `1`) })
	s.in(func(store transport.StateStore) {
		s.save(store, 1, `2`)
		if r := s.load(store, 1); string(r.State) != `2` || r.Status != transport.RecordActive {
			t.Errorf("loaded again, the record is %+v with the state %s", r, r.State)
		}
		s.save(store, 1, `3`)
	})
	s.is(1, transport.RecordActive, 2, `3`)
}

func stateRollback(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) { s.save(store, 1, `1`) })
	tx, store := s.begin(transport.OutboxEntry{})
	s.save(store, 1, `2`)
	s.save(store, 2, `2`)
	t.do("Rollback", tx.Rollback)
	s.is(1, transport.RecordActive, 1, `1`)
	s.is(2, transport.RecordNew, 0, "")
	id, name := s.name(1)
	if _, err := store.Load(t.ctx(), id, name); err == nil {
		t.Error("Load after Rollback succeeded")
	}
}

func stateCopy(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) {
		r := s.load(store, 1)
		r.State = []byte(`"saved"`)
		t.must("Save", store.Save(t.ctx(), r))
		copy(r.State, `"wrong"`)
		again := s.load(store, 1)
		copy(again.State, `"wrong"`)
	})
	s.is(1, transport.RecordActive, 1, `"saved"`)
}

func stateNotLoaded(t *test) {
	s := t.states(t.open())
	tx, store := s.begin(transport.OutboxEntry{})
	id, name := s.name(1)
	if store.Save(t.ctx(), transport.Record{ID: id, Name: *name, State: []byte(`1`)}) == nil {
		t.Error("Save of a record that was not loaded succeeded")
	}
	t.do("Rollback", tx.Rollback)
	s.is(1, transport.RecordNew, 0, "")
}

func stateAtOnce(t *test) {
	s := t.states(t.open())
	const workers, each = 4, 5
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				s.count()
			}
		})
	}
	wg.Wait()
	s.is(1, transport.RecordActive, workers*each, strconv.Itoa(workers*each))
}

func stateUnchanged(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) { s.save(store, 1, `1`) })
	tx, store := s.begin(transport.OutboxEntry{})
	s.load(store, 1)
	other := make(chan error, 1)
	go func() { other <- s.tryToCount(t.ctx()) }()
	t.pass(200 * time.Millisecond) // the other transaction waits, or is over
	var second error
	over := true
	select {
	case second = <-other:
	default:
		over = false
	}
	first := conflicting(tx, tx.Complete(t.ctx(), nil))
	if !over {
		second = <-other
	}
	for _, err := range []error{first, second} {
		if err != nil && !errors.Is(err, transport.ErrConflict) {
			t.Errorf("a transaction: %v", err)
		}
	}
	switch {
	case over && first == nil && second == nil:
		t.Error("another transaction changed the record between its Load and Complete")
	case first != nil && second != nil:
		t.Error("both transactions failed")
	}
}

func stateEnded(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) {
		r := s.load(store, 1)
		r.State, r.Meta, r.Status, r.Keep = []byte(`1`), []byte(`"m"`), transport.RecordEnded, time.Hour
		t.must("Save", store.Save(t.ctx(), r))
	})
	if r := s.is(1, transport.RecordEnded, 1, ""); r.State != nil || string(r.Meta) != `"m"` {
		t.Errorf("an ended record is %+v with the meta %s", r, r.Meta)
	}
	s.in(func(store transport.StateStore) {
		if r := s.load(store, 1); r.Status != transport.RecordEnded {
			t.Errorf("an ended record is %+v where it may be created", r)
		}
		s.save(store, 1, `2`)
	})
	s.is(1, transport.RecordActive, 2, `2`)
}

func stateRemoved(t *test) {
	s := t.states(t.open())
	id, _ := s.name(1)
	s.in(func(store transport.StateStore) { t.must("Remove", store.Remove(t.ctx(), id)) })
	s.in(func(store transport.StateStore) { s.save(store, 1, `1`) })
	s.in(func(store transport.StateStore) {
		s.save(store, 1, `2`)
		t.must("Remove", store.Remove(t.ctx(), id))
		_, err := store.Load(t.ctx(), id, nil)
		t.fails("Load of a record that was removed", err, transport.ErrNoRecord)
	})
	s.is(1, transport.RecordNew, 0, "")
	s.in(func(store transport.StateStore) { s.save(store, 1, `3`) })
	s.is(1, transport.RecordActive, 1, `3`)
}

func stateAgain(t *test) {
	s := t.states(t.open())
	s.in(func(store transport.StateStore) { s.save(store, 1, `1`) })
	tx, store := s.begin(transport.OutboxEntry{})
	s.save(store, 1, `"lost"`)
	replaced := make(chan error, 1)
	go func() { replaced <- s.replace() }()
	t.pass(200 * time.Millisecond) // the other transactions wait, or are over
	first := conflicting(tx, tx.Complete(t.ctx(), nil))
	if err := <-replaced; err != nil && !errors.Is(err, transport.ErrConflict) {
		t.Errorf("a transaction: %v", err)
	} else if err == nil {
		s.is(1, transport.RecordActive, 1, `"new"`)
	} else if first != nil {
		t.Errorf("both failed: %v", first)
	}
}

func stateWithEntry(t *test) {
	c := t.open()
	s, o := t.states(c), t.outbox(c)
	tx, store := s.begin(o.entry(key(1), "m-1"))
	s.save(store, 1, `1`)
	if err := tx.Complete(t.ctx(), []transport.Operation{to(t.name("missing"), "m-2")}); err == nil {
		t.Error("a transaction with a refused operation was completed")
	}
	t.do("Rollback", tx.Rollback)
	s.is(1, transport.RecordNew, 0, "")
	o.are(transport.NotHandled, key(1))
	tx, store = s.begin(o.entry(key(1), "m-1"))
	s.save(store, 1, `1`)
	t.must("Complete", tx.Complete(t.ctx(), nil))
	s.is(1, transport.RecordActive, 1, `1`)
	o.are(transport.Handled, key(1))
	t.holds(c, o.queue, "m-1")
}

var oddKeys = []string{
	"a", "A", "a%", "a_", `a'"`, "a\x00", "a\x00b", "a\x1a0", "ü", "u\u0308", " a", "a ", "\U0001f642", "0", strings.Repeat("x", 500),
}

func statePage(t *test) {
	s := t.states(t.open())
	inspector := as[transport.StateInspector](t, s.conn)
	for _, kind := range []string{s.kind, s.kind + "%", s.kind + "\x00"} {
		s.in(func(store transport.StateStore) {
			for i, k := range oddKeys {
				id := transport.RecordID(key(1000*len(kind) + i).ID)
				if strings.HasSuffix(kind, "\x00") {
					id[0] = 1
				}
				r, err := store.Load(t.ctx(), id, &transport.RecordName{Kind: kind, Key: k})
				t.must("Load", err)
				r.State = []byte(strconv.Quote(strconv.Itoa(i)))
				t.must("Save", store.Save(t.ctx(), r))
			}
		})
	}
	seen := map[string]int{}
	for after, pages := "", 0; pages <= len(oddKeys); pages++ {
		page, err := inspector.Records(t.ctx(), transport.RecordPage{Kind: s.kind, After: after, Limit: 4})
		t.must("Records", err)
		for _, r := range page {
			if r.Name.Kind != s.kind || r.Status != transport.RecordActive {
				t.Errorf("a page has %+v", r)
			}
			seen[r.Name.Key]++
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Name.Key
	}
	for _, k := range oddKeys {
		if seen[k] != 1 {
			t.Errorf("key %q is in %d pages", k, seen[k])
		}
	}
	if len(seen) != len(oddKeys) {
		t.Errorf("%d keys, want %d", len(seen), len(oddKeys))
	}
}

func stateInspect(t *test) {
	s := t.states(t.open())
	inspector := as[transport.StateInspector](t, s.conn)
	s.in(func(store transport.StateStore) {
		for n := range 3 {
			s.save(store, n, `1`)
		}
		r := s.load(store, 3)
		r.Status, r.Keep = transport.RecordEnded, time.Hour
		t.must("Save", store.Save(t.ctx(), r))
	})
	stats, err := inspector.InspectRecords(t.ctx(), s.kind)
	t.must("InspectRecords", err)
	if stats.Active != 3 || stats.Ended != 1 || stats.Oldest < 0 {
		t.Errorf("%+v", stats)
	}
	id, _ := s.name(1)
	r, err := inspector.Record(t.ctx(), id)
	t.must("Record", err)
	if string(r.State) != `1` || r.Version != 1 {
		t.Errorf("%+v", r)
	}
	t.must("RemoveRecord", inspector.RemoveRecord(t.ctx(), id))
	t.fails("RemoveRecord of an unknown record", inspector.RemoveRecord(t.ctx(), id), transport.ErrNoRecord)
	_, err = inspector.Record(t.ctx(), id)
	t.fails("Record of an unknown record", err, transport.ErrNoRecord)
	s.is(1, transport.RecordNew, 0, "")
}

func stateMissing(t *test) {
	s := states{t, t.open(), t.name("kind")}
	tx, store := s.begin(transport.OutboxEntry{})
	id, name := s.name(1)
	_, err := store.Load(t.ctx(), id, name)
	t.fails("Load", err, transport.ErrNoQueue)
	t.do("Rollback", tx.Rollback)
	inspector := as[transport.StateInspector](t, s.conn)
	_, err = inspector.InspectRecords(t.ctx(), s.kind)
	t.fails("InspectRecords", err, transport.ErrNoQueue)
	_, err = inspector.Record(t.ctx(), id)
	t.fails("Record", err, transport.ErrNoQueue)
	_, err = inspector.Records(t.ctx(), transport.RecordPage{Kind: s.kind, Limit: 1})
	t.fails("Records", err, transport.ErrNoQueue)
	t.fails("RemoveRecord", inspector.RemoveRecord(t.ctx(), id), transport.ErrNoQueue)
}
