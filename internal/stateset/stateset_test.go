package stateset

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

var (
	id   = transport.RecordID{7}
	name = transport.RecordName{Kind: "kind", Key: "key"}
	now  = time.Unix(1, 0)
)

func load(t *testing.T, s *Set, create *transport.RecordName, want transport.Record, wantErr error) {
	t.Helper()
	r, known, err := s.Load(id, create)
	if !known || !errors.Is(err, wantErr) || r.Version != want.Version || string(r.State) != string(want.State) || r.Status != want.Status {
		t.Errorf("Load returned %+v, known %v and %v, want %+v and %v", r, known, err, want, wantErr)
	}
}

func save(t *testing.T, s *Set, r transport.Record) {
	t.Helper()
	r.ID = id
	if err := s.Save(r, now); err != nil {
		t.Error(err)
	}
}

func change(t *testing.T, s *Set, verb Verb, loaded, version int64) {
	t.Helper()
	all := s.Changes()
	if len(all) != 1 || all[0].Verb != verb || all[0].Loaded != loaded || all[0].Record.Version != version || all[0].Record.ID != id {
		t.Errorf("the change is %+v, want verb %d of version %d to %d", *all[0], verb, loaded, version)
	}
}

func TestTheSavesOfATransactionAreOneChange(t *testing.T) {
	var s Set
	s.Add(transport.Record{ID: id, Name: name})
	load(t, &s, nil, transport.Record{}, transport.ErrNoRecord)
	load(t, &s, &name, transport.Record{}, nil)
	change(t, &s, Keep, 0, 0)
	save(t, &s, transport.Record{State: []byte("1")})
	load(t, &s, nil, transport.Record{Version: 1, State: []byte("1"), Status: transport.RecordActive}, nil)
	save(t, &s, transport.Record{State: []byte("2"), Status: transport.RecordEnded})
	load(t, &s, nil, transport.Record{Version: 1, Status: transport.RecordEnded}, nil)
	change(t, &s, Store, 0, 1)
	if got := s.Changes()[0].Record; got.Name != name || !got.Started.Equal(now) || !got.Changed.Equal(now) {
		t.Errorf("the record is %+v, want the name and times", got)
	}
}

func TestARemovedRecordCanBeCreatedAgain(t *testing.T) {
	var s Set
	s.Add(transport.Record{ID: id, Name: name, Version: 4, Status: transport.RecordActive, Started: now})
	s.Remove(id)
	change(t, &s, Remove, 4, 0)
	load(t, &s, nil, transport.Record{}, transport.ErrNoRecord)
	if err := s.Save(transport.Record{ID: id}, now); err == nil {
		t.Error("a record that was removed was saved without a Load")
	}
	load(t, &s, &name, transport.Record{}, nil)
	change(t, &s, Remove, 4, 0)
	save(t, &s, transport.Record{})
	change(t, &s, Store, 4, 1)
}

func TestASetSharesNoMemory(t *testing.T) {
	var s Set
	s.Add(transport.Record{ID: id, Version: 1, State: []byte("1"), Meta: []byte("1")})
	r, _, _ := s.Load(id, nil)
	r.State[0], r.Meta[0] = '2', '2'
	load(t, &s, nil, transport.Record{Version: 1, State: []byte("1")}, nil)
	save(t, &s, r)
	r.State[0] = '3'
	load(t, &s, nil, transport.Record{Version: 2, State: []byte("2"), Status: transport.RecordActive}, nil)
}

func TestErrNoRecordDoesNotFailATransaction(t *testing.T) {
	var s Set
	if err := s.Fail(transport.ErrNoRecord); err == nil || s.Err() != nil {
		t.Errorf("Fail returned %v and keeps %v", err, s.Err())
	}
	first := errors.New("first")
	_, _ = s.Fail(first), s.Fail(errors.New("second"))
	if !errors.Is(s.Err(), first) {
		t.Errorf("the error is %v, want the first", s.Err())
	}
}
