package tablequeue

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// Records is implemented by a [Store] that stores records. Its transactions are [RecordTx]s. The
// table of records has the columns
//
//	id         of the record, the primary key
//	kind, key  the name
//	version    the number of transactions that have saved it
//	status     the number of its [transport.RecordStatus]
//	state      text, null in an ended record
//	meta       text or null
//	started    when it was saved first, by the database's clock
//	changed    when it was saved last
//	forget_at  when an ended record is to be removed; null in an active one
//
// and indexes on (kind, key), and on forget_at where that is not null. Errors about a missing table
// wrap [transport.ErrNoQueue]. The installer creates it for a [transport.Plan] with Records, and
// nothing removes it.
type Records interface {
	// DueForForgettingRecords reports whether no process has removed ended records for pause, and
	// marks that: one process at a time is told so.
	DueForForgettingRecords(ctx context.Context, pause time.Duration) (bool, error)
	// ForgetRecords removes up to limit ended records whose time is over, the oldest first, and
	// returns their number. It skips those that are locked.
	ForgetRecords(ctx context.Context, limit int) (int64, error)
	// RecordsState fails with [transport.ErrNoQueue] when there is no table of records, and with an
	// [*UnfitError] when the table is none of this version.
	RecordsState(ctx context.Context) error

	// InspectRecords, Records and Record are those of [transport.StateInspector].
	InspectRecords(ctx context.Context, kind string) (transport.RecordStats, error)
	Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error)
	Record(ctx context.Context, id transport.RecordID) (transport.Record, error)
}

// RecordTx is implemented by a [StoreTx] of a store with [Records]. Complete writes Unit.Records
// too.
type RecordTx interface {
	// LoadRecord returns a record. Until the transaction is over no other one changes it, or else
	// Complete fails with a Conflict. Where there is no record it fails with
	// [transport.ErrNoRecord] if create is nil, and otherwise returns a new one, with version 0,
	// which no other transaction can create until this one is over; or else Complete fails with a
	// Conflict. LoadRecord waits for locks for [RecordWait], and then fails with a Locked error.
	// The engine calls it once for each record.
	LoadRecord(ctx context.Context, id transport.RecordID, create *transport.RecordName) (transport.Record, error)
}

// RecordWait is the time for which a transaction waits for a record that another one has locked.
const RecordWait = 5 * time.Second
