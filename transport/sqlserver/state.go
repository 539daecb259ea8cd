package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ tablequeue.Records  = (*store)(nil)
	_ tablequeue.RecordTx = (*handlerTx)(nil)
)

// errRecordChanged is the error of a commit with a record that is not as it was loaded: a handler
// has rolled the lock back, with a savepoint.
var errRecordChanged = errors.New("the record is not as it was loaded")

// LoadRecord implements [tablequeue.RecordTx]. It begins the transaction.
func (t *handlerTx) LoadRecord(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (r transport.Record, err error) {
	tx, err := t.begun(ctx)
	if err != nil {
		return r, err
	}
	st, o := t.store.records(), waiting{tx, recordWait}
	for range 10 { // another transaction may remove the record between the insert and the lock
		if create != nil {
			_, err = o.ExecContext(ctx, st.insert, recordKey(id), bytesOf("kind", create.Kind), bytesOf("key", create.Key))
		}
		if err == nil {
			r, err = oneRecord(ctx, o, st.lock, recordKey(id))
		}
		if create == nil || !errors.Is(err, transport.ErrNoRecord) {
			return r, recordFailed(err, id)
		}
		err = nil
	}
	return r, recordFailed(fmt.Errorf("other transactions remove it: %w", transport.ErrConflict), id)
}

func recordFailed(err error, id transport.RecordID) error {
	if err == nil || errors.Is(err, transport.ErrNoRecord) {
		return err
	}
	return failed(err, "record %s", uuid.Text(id))
}

// writeRecords writes the changes of the records that a transaction has loaded.
func (s *store) writeRecords(ctx context.Context, o on, changes []*stateset.Change) error {
	st := s.records()
	for _, c := range changes {
		r := &c.Record
		n, err := int64(1), error(nil)
		switch {
		case c.Verb == stateset.Store:
			n, err = changed(ctx, o, st.save, recordKey(r.ID), sql.Named("loaded", c.Loaded), sql.Named("version", r.Version),
				sql.Named("status", int64(r.Status)), jsonText("state", r.State), jsonText("meta", r.Meta),
				sql.Named("keep", r.Keep.Microseconds()))
		case c.Verb == stateset.Remove, c.Loaded == 0: // which this transaction has created
			n, err = changed(ctx, o, st.remove, recordKey(r.ID), sql.Named("loaded", c.Loaded))
		}
		if err == nil && n == 0 {
			err = errRecordChanged
		}
		if err != nil {
			return fmt.Errorf("record %s: %w", uuid.Text(r.ID), err)
		}
	}
	return nil
}

// records returns the statements on the table of records.
func (s *store) records() *recordTable { return newRecords(s.Schema) }

// recordKey returns the parameter with an id.
func recordKey(id transport.RecordID) sql.NamedArg { return sql.Named("id", id[:]) }

func bytesOf(name, text string) sql.NamedArg { return sql.Named(name, []byte(text)) }

// jsonText returns a parameter with JSON, and null for nil.
func jsonText(name string, b []byte) sql.NamedArg {
	if b == nil {
		return sql.Named(name, sql.NullString{})
	}
	return sql.Named(name, mssql.NVarCharMax(b))
}

// oneRecord returns the record of a query, or [transport.ErrNoRecord].
func oneRecord(ctx context.Context, o on, query string, args ...any) (transport.Record, error) {
	var found []transport.Record
	if err := each(ctx, o, appendRecord(&found), query, args...); err != nil {
		return transport.Record{}, err
	}
	if len(found) == 0 {
		return transport.Record{}, transport.ErrNoRecord
	}
	return found[0], nil
}

// appendRecord appends a row of recordColumns.
func appendRecord(to *[]transport.Record) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var r transport.Record
		var id, kind, key []byte
		var status int64
		var state, meta sql.Null[string]
		err := rows.Scan(&id, &kind, &key, &r.Version, &status, &state, &meta, &r.Started, &r.Changed)
		copy(r.ID[:], id)
		r.Name, r.Status = transport.RecordName{Kind: string(kind), Key: string(key)}, transport.RecordStatus(status)
		if state.Valid {
			r.State = []byte(state.V)
		}
		if meta.Valid {
			r.Meta = []byte(meta.V)
		}
		if r.Version == 0 { // it has not been saved
			r.Started, r.Changed = time.Time{}, time.Time{}
		}
		*to = append(*to, r)
		return err
	}
}

// Record implements [tablequeue.Records].
func (s *store) Record(ctx context.Context, id transport.RecordID) (transport.Record, error) {
	r, err := oneRecord(ctx, s.db, s.records().one, recordKey(id))
	return r, recordFailed(err, id)
}

// Records implements [tablequeue.Records].
func (s *store) Records(ctx context.Context, p transport.RecordPage) (page []transport.Record, err error) {
	err = each(ctx, s.db, appendRecord(&page), s.records().page, bytesOf("kind", p.Kind), bytesOf("after", p.After), sql.Named("limit", p.Limit))
	return page, failed(err, "read records")
}

// InspectRecords implements [tablequeue.Records]. It reads all records of the kind that are not
// locked.
func (s *store) InspectRecords(ctx context.Context, kind string) (stats transport.RecordStats, err error) {
	var oldest int64
	err = s.db.QueryRowContext(ctx, s.records().count, bytesOf("kind", kind)).Scan(&stats.Active, &stats.Ended, &oldest)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, failed(err, "inspect records")
}

// installRecords returns the statements that create the table of records and its version, which is
// among those of inboxes.
func (s *store) installRecords() []step {
	st := s.records()
	return []step{
		{"versions of inboxes", createInboxVersions(s.Schema)}, {"table of records", st.create}, {"table of records", st.note},
	}
}

// RecordsState implements [tablequeue.Records].
func (s *store) RecordsState(ctx context.Context) error {
	st := s.records()
	var columns []string
	err := each(ctx, s.db, values(&columns), st.columns)
	if err == nil && len(columns) == 0 {
		err = transport.ErrNoQueue
	}
	for _, column := range []string{"id", "kind", "key", "version", "status", "state", "meta", "started", "changed", "forget_at"} {
		if err == nil && !slices.Contains(columns, column) {
			err = &tablequeue.UnfitError{Reason: fmt.Sprintf("it has no column %q", column)}
		}
	}
	version := 0
	if err == nil {
		err = s.db.QueryRowContext(ctx, st.version).Scan(&version)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = transport.ErrNoQueue // the installer adds the version
	case version > recordsVersion:
		err = &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, recordsVersion)}
	}
	return failed(err, "table of records in schema %q", s.Schema)
}

// DueForForgettingRecords implements [tablequeue.Records].
func (s *store) DueForForgettingRecords(ctx context.Context, pause time.Duration) (bool, error) {
	n, err := changed(ctx, s.db, dueForForgetting(s.Schema, dialect.RecordTable), ago(pause))
	return n > 0, failed(err, "look for ended records")
}

// ForgetRecords implements [tablequeue.Records].
func (s *store) ForgetRecords(ctx context.Context, limit int) (int64, error) {
	n, err := changed(ctx, s.db, s.records().forget, sql.Named("limit", limit))
	return n, failed(err, "remove ended records")
}
