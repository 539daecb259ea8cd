package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

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
func (s *store) Outage(ctx context.Context, err error) bool {
	switch numberOf(err) {
	case 1101, 1105, 9002, 40544: // no page can be allocated, the filegroup is full, the log is full, the size quota is reached
		return true
	case databaseReadOnly:
		var updateable string
		asked := s.db.QueryRowContext(ctx, updateability).Scan(&updateable)
		return asked == nil && updateable == "READ_ONLY"
	}
	return false
}

// numberOf returns the number of the server's answer, or 0 without one.
func numberOf(err error) int32 {
	answer, _ := errors.AsType[mssql.Error](err)
	return answer.Number
}

// Classify implements [tablequeue.Store]. When the server answers with an error it has rolled back,
// also for a statement of a handler.
func (s *store) Classify(err error) tablequeue.Class {
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
