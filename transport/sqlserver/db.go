package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// db is the database of a store: its tables, and the connections. The parts of the store share it.
type db struct {
	*schema
	log      *slog.Logger
	engine   *sql.DB          // for the engine's statements
	detector dialect.Detector // of the tables' traits
}

// on executes statements: on connections of the pool, or in a transaction.
type on interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// minLevel is the lowest compatibility level with OPENJSON: that of SQL Server 2016.
const minLevel = 130

// connect reads the name and the compatibility level of the database.
func (d *db) connect(ctx context.Context) error {
	var level int
	err := d.engine.QueryRowContext(ctx, databaseAndLevel).Scan(&d.database, &level)
	if err == nil && level < minLevel {
		err = fmt.Errorf("database %q has compatibility level %d, want %d or above: "+
			"ALTER DATABASE %s SET COMPATIBILITY_LEVEL = %d",
			d.database, level, minLevel, bracket(d.database), minLevel)
	}
	return failed(err, "open")
}

// each executes a query and calls row, which scans, for each row of its first result.
func each(ctx context.Context, o on, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := o.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// values appends the values of a result's only column.
func values[T any](to *[]T) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var value T
		err := rows.Scan(&value)
		*to = append(*to, value)
		return err
	}
}

// list returns a parameter for OPENJSON: a list of any length for a statement whose text, and so
// whose plan, is always the same. Its values are numbers and texts, which can always be encoded.
func list(name string, values any) sql.NamedArg {
	doc, _ := json.Marshal(values) //nolint:errchkjson // see above
	return sql.Named(name, mssql.NVarCharMax(doc))
}

// changed executes a statement that ends with selectCount.
func changed(ctx context.Context, o on, statement string, args ...any) (n int64, err error) {
	err = each(ctx, o, func(rows *sql.Rows) error { return rows.Scan(&n) }, statement, args...)
	return n, err
}

// inTx calls do in a transaction, which it commits when do returns nil.
func (d *db) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := d.engine.BeginTx(ctx, nil)
	if err != nil {
		return undoneError{err}
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback()
		return undoneError{err}
	}
	return tx.Commit()
}

// connector marks the errors of connecting, after which no statement was sent.
type connector struct{ driver.Connector }

// connectTimeout bounds a call of a connector, which may be the user's.
const connectTimeout = time.Minute

var errNoConn = errors.New("the connector has not returned in time")

// Connect waits for the connector until ctx ends.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, errNoConn)
	defer cancel()
	conn, err := callback.Open(ctx, func() (driver.Conn, error) { return c.Connector.Connect(ctx) })
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

type connectError struct{ cause error }

func (e *connectError) Error() string { return "connect: " + e.cause.Error() }

func (e *connectError) Unwrap() error { return e.cause }

// poolSize is the number of connections for claims, renewals and writes.
const poolSize = 4

func openDB(c connector, size int) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db
}

// Numbers by which the server refuses a statement because of its table.
const (
	invalidColumn = 207 // one of another version, or one of NServiceBus's
	missingIndex  = 308 // of a hint
	hasTriggers   = 334 // OUTPUT without INTO
)

// repeat calls do, which uses the table of queue: again while it fails because of a trait that was
// not known.
func (d *db) repeat(ctx context.Context, queue string, do func() error) error {
	return d.detector.Repeat(ctx, []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: queue}}, do)
}

func refusedByTrait(err error) bool {
	return slices.Contains([]int32{hasTriggers, invalidColumn, missingIndex}, numberOf(err))
}

// detectTraits reports whether a queue's table has traits that were not known. The server names a
// table with triggers in words only, so that all queues are taken to have them.
func (d *db) detectTraits(ctx context.Context, queue string, err error) bool {
	traits := d.table(queue).traits
	if numberOf(err) == hasTriggers {
		traits.triggers = true
	} else if columns, err := d.columns(ctx, queue); err == nil {
		traits = traits.of(columns)
	}
	if traits == d.table(queue).traits {
		return false
	}
	d.tables.Set(queue, newTable(d.Schema, d.place(queue), traits))
	return true
}

// of returns the traits of a table with these columns. A table that does not exist has those of a
// new one.
func (t traits) of(columns []string) traits {
	ours := slices.Contains(columns, "lease_id")
	t.foreign = len(columns) > 0 && !ours
	t.recoverable = t.foreign && slices.Contains(columns, "Recoverable")
	t.first = ours && !slices.Contains(columns, "RowVersion")
	return t
}

// unfit returns the reason why a table without lease_id is not received from: [dialect.ErrForeign],
// or that it is no queue at all.
func unfit(columns []string) error {
	for _, c := range []string{"Id", "Expires", "Headers", "Body", "RowVersion"} {
		if !slices.Contains(columns, c) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table is no queue: it has no column %q", c)}
		}
	}
	return dialect.ErrForeign
}

// columns returns the columns of a queue's table, and none where there is no table.
func (d *db) columns(ctx context.Context, queue string) (names []string, err error) {
	err = each(ctx, d.engine, values(&names), d.table(queue).columns)
	return names, err
}

const (
	invalidObject       = 208
	objectDenied        = 229
	columnDenied        = 230
	lockTimeoutExceeded = 1222
	truncatedFrom2019   = 2628
	databaseReadOnly    = 3906
	truncated           = 8152 // a text or value has no room in its column
)

// failure is an error of the SQL Server dialect.
type failure struct{ error }

func (e failure) Unwrap() error { return e.error }

// undoneError is an error after which nothing was executed, even where the server has not answered.
type undoneError struct{ error }

func (e undoneError) Unwrap() error { return e.error }

// failed adds the operation to err, and [transport.ErrNoQueue] where a table is missing, or
// [transport.ErrDenied] where a right is. It returns nil for nil.
func failed(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	switch number := numberOf(err); {
	case number == invalidObject && !errors.Is(err, tablequeue.ErrNotInstalled):
		err = fmt.Errorf("%w: %w", transport.ErrNoQueue, err)
	case number == objectDenied || number == columnDenied:
		err = fmt.Errorf("%w: %w", transport.ErrDenied, err)
	case number == truncated || number == truncatedFrom2019:
		err = fmt.Errorf("%w: %w", transport.ErrContent, err)
	}
	return failure{fmt.Errorf("sqlserver: %s: %w", fmt.Sprintf(doing, args...), err)}
}

// Outage implements [tablequeue.Outages]. A handler may have written to another database of the
// server that is read-only, so the server is asked.
func (d *db) Outage(ctx context.Context, err error) bool {
	switch numberOf(err) {
	case 1101, 1105, 9002, 40544: // no page can be allocated, the filegroup is full, the log is full, the size quota is reached
		return true
	case databaseReadOnly:
		var updateable string
		asked := d.engine.QueryRowContext(ctx, updateability).Scan(&updateable)
		return asked == nil && updateable == "READ_ONLY"
	}
	return false
}

// numberOf returns the number of the server's answer, or 0 without one.
func numberOf(err error) int32 {
	answer, _ := errors.AsType[mssql.Error](err)
	return answer.Number
}

// Classify returns the class of err, for [tablequeue.Store]. A server that answers with an error
// has rolled back, also for a statement of a handler.
func (d *db) Classify(err error) tablequeue.Class {
	answer, answered := errors.AsType[mssql.Error](err)
	_, never := errors.AsType[*connectError](err)
	_, unsent := errors.AsType[mssql.RetryableError](err)
	_, own := errors.AsType[failure](err)
	_, undone := errors.AsType[undoneError](err)
	switch {
	case errors.Is(err, dialect.ErrDetected), errors.Is(err, errRival), errors.Is(err, errNamedTwice),
		errors.Is(err, errRecordChanged):
		return tablequeue.Conflict
	case errors.Is(err, dialect.ErrDelay), errors.Is(err, tablequeue.ErrNoTimers), errors.Is(err, errSkipped):
		return tablequeue.Refused
	case never, unsent:
		return tablequeue.Unavailable
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, errEnded):
		return tablequeue.Failed
	case answered && answer.Class < fatal:
		return classOf(answer)
	case !own:
		return tablequeue.Failed
	case undone:
		return tablequeue.Unavailable
	}
	return tablequeue.Unknown
}

// Severities: from resources on the cause is the server's, and from fatal on it ends the
// connection.
const (
	resources = 17
	fatal     = 20
)

// ownErrors is the first number of the errors that triggers and procedures raise, with a severity
// that they choose.
const ownErrors = 50000

func classOf(answer mssql.Error) tablequeue.Class {
	switch {
	case answer.Number >= ownErrors:
		return tablequeue.Refused
	case answer.Number == 1101, answer.Number == 1105: // a filegroup is full: others may have room
		return tablequeue.Impeded
	case answer.Class >= resources:
		return tablequeue.Unavailable
	}
	switch answer.Number {
	case 1205, 3960: // deadlock, snapshot conflict
		return tablequeue.Conflict
	case lockTimeoutExceeded:
		return tablequeue.Locked
	case 0, 3902, 3903, 3930: // the transaction has been ended by the server, or can only be rolled back
		return tablequeue.Failed
	case 976, 978, 983, databaseReadOnly, // replica not readable or not yet
		4060, 18452, 18456, // database or login refused
		10928, 10929, 40197, 40501, 40613, 49918, 49919, 49920: // Azure SQL is busy or moving
		return tablequeue.Unavailable
	}
	return tablequeue.Refused
}
