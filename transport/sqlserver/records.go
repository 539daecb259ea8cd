package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.RecordTx = (*handlerTx)(nil)

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
	st, o := t.of.writer.records(), waiting{tx, recordWait}
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
func (w *writer) writeRecords(ctx context.Context, o on, changes []*stateset.Change) error {
	st := w.records()
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

// recordStore is the part of a store with the table of records.
type recordStore struct{ *db }

// Record implements [tablequeue.Records].
func (rs *recordStore) Record(
	ctx context.Context, id transport.RecordID,
) (transport.Record, error) {
	r, err := oneRecord(ctx, rs.engine, rs.records().one, recordKey(id))
	return r, recordFailed(err, id)
}

// Records implements [tablequeue.Records].
func (rs *recordStore) Records(
	ctx context.Context, p transport.RecordPage,
) (page []transport.Record, err error) {
	err = each(ctx, rs.engine, appendRecord(&page), rs.records().page, bytesOf("kind", p.Kind), bytesOf("after", p.After), sql.Named("limit", p.Limit))
	return page, failed(err, "read records")
}

// InspectRecords implements [tablequeue.Records]. It reads all records of the kind that are not
// locked.
func (rs *recordStore) InspectRecords(
	ctx context.Context, kind string,
) (stats transport.RecordStats, err error) {
	var oldest int64
	err = rs.engine.QueryRowContext(ctx, rs.records().count, bytesOf("kind", kind)).Scan(&stats.Active, &stats.Ended, &oldest)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, failed(err, "inspect records")
}

// RecordsState implements [tablequeue.Records].
func (rs *recordStore) RecordsState(ctx context.Context) error {
	st := rs.records()
	var columns []string
	err := each(ctx, rs.engine, values(&columns), st.columns)
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
		err = rs.engine.QueryRowContext(ctx, st.version).Scan(&version)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = transport.ErrNoQueue // the installer adds the version
	case version > recordsVersion:
		err = &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, recordsVersion)}
	}
	return failed(err, "table of records in schema %q", rs.Schema)
}

// DueForForgettingRecords implements [tablequeue.Records].
func (rs *recordStore) DueForForgettingRecords(
	ctx context.Context, pause time.Duration,
) (bool, error) {
	n, err := changed(ctx, rs.engine, dueForForgetting(rs.Schema, dialect.RecordTable), ago(pause))
	return n > 0, failed(err, "look for ended records")
}

// ForgetRecords implements [tablequeue.Records].
func (rs *recordStore) ForgetRecords(ctx context.Context, limit int) (int64, error) {
	n, err := changed(ctx, rs.engine, rs.records().forget, sql.Named("limit", limit))
	return n, failed(err, "remove ended records")
}

// recordsVersion is the version of the table of records that this package creates.
const recordsVersion = 1

// recordTable is the statements on the table of records. Names are bytes of UTF-8, so that no
// collation compares them.
type recordTable struct {
	create, note, columns, version,
	insert, lock, save, remove, forget, page, one, count string
}

// recordColumns are the columns of a record as scanRecord reads them.
const recordColumns = `id, kind, [key], version, status, state, meta, started, changed`

// recordWait is the time for which a statement in a handler's transaction waits for a record. It
// ends with the statement: the handler's own statements wait as the handler says.
var recordWait = "SET LOCK_TIMEOUT " + strconv.FormatInt(tablequeue.RecordWait.Milliseconds(), 10) + ";\n"

func newRecords(schema string) *recordTable {
	q, versions := quote(schema, dialect.RecordTable), quote(schema, dialect.InboxTable)
	table, name := literal(q), literal(dialect.RecordTable)
	return &recordTable{
		create: `IF object_id(` + table + `, N'U') IS NULL
BEGIN
	CREATE TABLE ` + q + ` (
		id binary(16) PRIMARY KEY CLUSTERED,
		kind varbinary(1024) NOT NULL,
		[key] varbinary(500) NOT NULL,
		version bigint NOT NULL,
		status smallint NOT NULL,
		state nvarchar(max) NULL,
		meta nvarchar(max) NULL,
		started datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		changed datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		forget_at datetime2(7) NULL,
		INDEX holdfast_kind_key NONCLUSTERED (kind, [key]),
		INDEX holdfast_forget_at NONCLUSTERED (forget_at));
	ALTER TABLE ` + q + ` SET (LOCK_ESCALATION = DISABLE);
END`,
		note: fmt.Sprintf(`IF EXISTS (SELECT 1 FROM %s WHERE name = %s AND version > %d)
	THROW 50000, N'the table of records is of a version that this program does not know: update this program', 1;
IF NOT EXISTS (SELECT 1 FROM %[1]s WHERE name = %[2]s)
	INSERT INTO %[1]s (name, version) VALUES (%[2]s, %[3]d);`, versions, name, recordsVersion),
		columns: `SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(` + table + `, N'U')`,
		version: `SELECT version FROM ` + versions + ` WHERE name = ` + name,

		// A record that is created has the version 0 until the commit. Both parts wait for another
		// one of the same id that is not committed. The error of a duplicate key ends the insert
		// alone.
		insert: `IF NOT EXISTS (SELECT 1 FROM ` + q + ` WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id)
BEGIN
	BEGIN TRY
		INSERT INTO ` + q + ` (id, kind, [key], version, status) VALUES (@id, @kind, @key, 0, 0);
	END TRY
	BEGIN CATCH
		IF error_number() NOT IN (2601, 2627) THROW;
	END CATCH
END`,
		lock: `SELECT ` + recordColumns + ` FROM ` + q + ` WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id`,
		save: `UPDATE ` + q + ` WITH (ROWLOCK) SET version = @version, status = @status, state = @state, meta = @meta,
	started = CASE WHEN @version = 1 THEN sysutcdatetime() ELSE started END, changed = sysutcdatetime(),
	forget_at = CASE WHEN @status = 2 THEN ` + later("sysutcdatetime()", "@keep") + ` END
WHERE id = @id AND version = @loaded;` + selectCount,
		remove: `DELETE FROM ` + q + ` WITH (ROWLOCK) WHERE id = @id AND version = @loaded;` + selectCount,
		forget: `WITH old AS (
	SELECT TOP (@limit) forget_at FROM ` + q + ` WITH (INDEX (holdfast_forget_at), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE forget_at <= sysutcdatetime() ORDER BY forget_at)
DELETE FROM old;` + selectCount,
		page: `SELECT TOP (@limit) ` + recordColumns + ` FROM ` + q + ` WITH (READCOMMITTEDLOCK)
WHERE kind = @kind AND [key] > @after AND version > 0 ORDER BY [key]`,
		one: `SELECT ` + recordColumns + ` FROM ` + q + ` WITH (READCOMMITTEDLOCK) WHERE id = @id AND version > 0`,
		count: `SELECT coalesce(sum(CASE WHEN status = 1 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN status = 2 THEN 1 ELSE 0 END), 0),
	coalesce(datediff_big(microsecond, min(CASE WHEN status = 1 THEN changed END), sysutcdatetime()), 0)
FROM ` + q + lookHint + ` WHERE kind = @kind`,
	}
}
