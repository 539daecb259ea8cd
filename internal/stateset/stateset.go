// Package stateset keeps the records of a transaction from Load to the commit, which writes them.
package stateset

import (
	"bytes"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// Set has the records that a transaction has loaded. The zero value has none. It is not safe for
// concurrent use.
type Set struct {
	changes []*Change // in the order of the first Load
	err     error
}

// Change is a record that a transaction has loaded, and the difference to the database.
type Change struct {
	Verb Verb
	// Record is the record as the transaction sees it, and as it is stored: with the version after
	// the commit, and the Keep of Save. Its ID is always set.
	Record transport.Record
	// Loaded is the version in the database. 0: there is no record.
	Loaded int64
	// exists reports whether Load returns Record without creating it.
	exists bool
	// loaded reports whether Record may be saved.
	loaded bool
}

// Verb is what the commit does with a record.
type Verb int8

const (
	// Keep means that the record is as it was loaded.
	Keep Verb = iota
	// Store means that the record is inserted or updated.
	Store
	// Remove means that the record is deleted, if there was one.
	Remove
)

// Changes returns the records that were loaded. The set owns them.
func (s *Set) Changes() []*Change { return s.changes }

// Err returns the error after which the transaction can only be rolled back, or nil.
func (s *Set) Err() error { return s.err }

// Fail returns err, and keeps it for Err unless it is nil or [transport.ErrNoRecord].
func (s *Set) Fail(err error) error {
	if err != nil && err != transport.ErrNoRecord && s.err == nil { //nolint:errorlint // it is returned as it is
		s.err = err
	}
	return err
}

func (s *Set) find(id transport.RecordID) *Change {
	for _, c := range s.changes {
		if c.Record.ID == id {
			return c
		}
	}
	return nil
}

// Load returns a record that was loaded before, and reports whether there is one. The error is
// [transport.ErrNoRecord] or nil.
func (s *Set) Load(id transport.RecordID, create *transport.RecordName) (r transport.Record, known bool, err error) {
	c := s.find(id)
	if c == nil {
		return r, false, nil
	}
	if !c.exists {
		if create == nil {
			return r, true, transport.ErrNoRecord
		}
		c.Record = transport.Record{ID: id, Name: *create}
		c.loaded = true
	}
	r = Copy(c.Record)
	r.Keep = 0
	return r, true, nil
}

// Add adds a record that the transaction has locked, as it is in the database. A record with the
// version 0 is new. The set owns the record.
func (s *Set) Add(r transport.Record) {
	s.changes = append(s.changes, &Change{Record: r, Loaded: r.Version, exists: r.Version > 0, loaded: true})
}

// Save has the commit store a record. now is the time that Load returns in this transaction.
func (s *Set) Save(r transport.Record, now time.Time) error {
	c := s.find(r.ID)
	if c == nil || !c.loaded {
		return fmt.Errorf("save record %s: the transaction has not loaded it", uuid.Text(r.ID))
	}
	r = Copy(r)
	r.Name, r.Version, r.Started, r.Changed = c.Record.Name, c.Record.Version, c.Record.Started, now
	if c.Verb != Store { // the saves of a transaction are one change
		r.Version++
	}
	if r.Started.IsZero() {
		r.Started = now
	}
	r.Keep = max(0, r.Keep)
	if r.Status == transport.RecordEnded {
		r.State = nil
	} else {
		r.Status = transport.RecordActive
	}
	c.Verb, c.Record, c.exists = Store, r, true
	return nil
}

// Remove has the commit delete a record that was loaded.
func (s *Set) Remove(id transport.RecordID) {
	c := s.find(id)
	c.Verb, c.Record, c.exists, c.loaded = Remove, transport.Record{ID: id}, false, false
}

// Copy returns a copy of r that shares no memory with it.
func Copy(r transport.Record) transport.Record {
	r.State, r.Meta = bytes.Clone(r.State), bytes.Clone(r.Meta)
	return r
}
