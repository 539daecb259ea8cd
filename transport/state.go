package transport

import (
	"context"
	"errors"
	"time"
)

// StateStore is implemented by a Tx whose database can store records beside the handler's own
// writes. Sagas keep their state in records. The table of records exists when a [Plan] with Records
// is installed; every method fails with [ErrNoQueue] where it is missing.
//
// Every method fails with an error that wraps [ErrConflict] when another transaction has changed
// the record, or keeps it locked for longer than some seconds. After an error of a method the
// transaction can only be rolled back, unless the error is [ErrNoRecord].
type StateStore interface {
	// Load returns the record with that id, for a change in this transaction. No other transaction
	// changes it before this one is over: the driver locks the record, or checks at Complete that
	// it has not been changed. A second Load in a transaction returns what Save has stored.
	//
	// Where there is no such record, Load fails with [ErrNoRecord] if create is nil. Otherwise it
	// returns a new record with that name. Of transactions that create one record at the same time
	// one does so, and the others wait for it.
	//
	// The caller owns the record.
	Load(ctx context.Context, id RecordID, create *RecordName) (Record, error)

	// Save stores the State, Meta, Status and Keep of a record that this transaction has loaded,
	// when the transaction completes. A record with the status [RecordNew] becomes active; of one
	// with the status [RecordEnded] no State is stored. The driver keeps no reference to r.
	Save(ctx context.Context, r Record) error

	// Remove deletes a record. One that does not exist is no error.
	Remove(ctx context.Context, id RecordID) error
}

// RecordID identifies a record in a database. It is derived from the name of the record.
type RecordID [16]byte

// RecordName is the name of a record.
type RecordName struct {
	// Kind groups records that belong together, such as those of one saga of one endpoint. Tools
	// list records by kind.
	Kind string
	// Key is unique within the kind. It is any valid UTF-8 of at most 500 bytes, also with NUL.
	Key string
}

// RecordStatus is the status of a [Record].
type RecordStatus int8

const (
	// RecordNew means that Load has created the record. Unless it is saved, the record is not
	// stored.
	RecordNew RecordStatus = iota
	// RecordActive means that the record has been saved.
	RecordActive
	// RecordEnded means that the record has ended. It is kept, without its State, for as long as
	// its Keep says.
	RecordEnded
)

// Record is a state with a name.
type Record struct {
	ID     RecordID
	Name   RecordName
	Status RecordStatus
	// Version is the number of transactions that have saved the record. Save ignores it.
	Version int64
	// State is JSON, and nil in a new or ended record. The database stores the bytes as they are.
	State []byte
	// Meta is JSON of the framework beside the state; nil is none. It is kept when the record has
	// ended.
	Meta []byte
	// Keep is the time for which a record is kept that Save stores with the status RecordEnded.
	// Then the driver removes it, as it removes old ids from inboxes. Load does not set it.
	Keep time.Duration
	// Started and Changed are the times of the first and the last Save, by the database's clock;
	// estimates in the transaction that saves the record. Save ignores them.
	Started, Changed time.Time
}

var (
	// ErrNoRecord is returned for a record that does not exist.
	ErrNoRecord = errors.New("no such record")
	// ErrConflict is wrapped by the error of a transaction that gave way to another one. Nothing
	// was written, and the same transaction may succeed when it is repeated. The endpoint repeats
	// the attempt, which uses up no retry.
	ErrConflict = errors.New("another transaction uses the same data")
)

// StateInspector is implemented by a Conn whose transactions are [StateStore]s. Tools use it, and
// the endpoint sees by it that the database can store records.
type StateInspector interface {
	// InspectRecords describes the records of a kind. It fails with [ErrNoQueue] where the table of
	// records is missing.
	InspectRecords(ctx context.Context, kind string) (RecordStats, error)
	// Records returns a page of records, in the order of their keys as the database compares them.
	Records(ctx context.Context, p RecordPage) ([]Record, error)
	// Record returns one record, or [ErrNoRecord].
	Record(ctx context.Context, id RecordID) (Record, error)
	// RemoveRecord deletes a record, unless a transaction has it locked for long. It fails with
	// [ErrNoRecord] or as the methods of a StateStore do.
	RemoveRecord(ctx context.Context, id RecordID) error
}

// RecordPage is a part of the records of a kind: at most Limit of those with keys behind After; ""
// begins.
type RecordPage struct {
	Kind, After string
	Limit       int
}

// RecordStats describes the records of one kind. Numbers of a large table may be estimates.
type RecordStats struct {
	Active, Ended int64
	// Oldest is the time since the longest unchanged active record was saved; 0 without one.
	Oldest time.Duration
}
