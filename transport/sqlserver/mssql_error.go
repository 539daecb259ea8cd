package sqlserver

import (
	"database/sql"
	"errors"
	"fmt"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// mssqlError is an error of the SQL Server dialect.
type mssqlError struct {
	doing  string
	cause  error
	undone bool // nothing has happened, also where the server did not say so
}

func (e *mssqlError) Error() string { return "mssql: " + e.doing + ": " + e.cause.Error() }
func (e *mssqlError) Unwrap() error { return e.cause }

const (
	invalidObject       = 208
	lockTimeoutExceeded = 1222
)

// mssqlFailed adds to err what was attempted.
func mssqlFailed(doing string, err error) error {
	return &mssqlError{doing: doing, cause: mssqlCause(err)}
}

// mssqlUndone is mssqlFailed for what is rolled back with its transaction.
func mssqlUndone(doing string, err error) error {
	return &mssqlError{doing: doing, cause: mssqlCause(err), undone: true}
}

// mssqlCause says that a queue is missing where that is it.
func mssqlCause(err error) error {
	if number, ok := mssqlNumber(err); ok && number == invalidObject {
		return fmt.Errorf("%w: %w", transport.ErrNoQueue, err)
	}
	return err
}

// mssqlNumber is the number that the server gave to err, if it answered at all.
func mssqlNumber(err error) (number int32, ok bool) {
	answer, ok := errors.AsType[mssql.Error](err)
	return answer.Number, ok
}

// Classify implements [tablequeue.Store]. What the server has answered with it has rolled back, also when it
// answered a handler.
func (s *mssqlStore) Classify(err error) tablequeue.Class {
	switch {
	case errors.Is(err, errLearned):
		return tablequeue.Conflict
	case errors.Is(err, errDelay):
		return tablequeue.Refused
	}
	_, never := errors.AsType[*connectError](err)
	_, unsent := errors.AsType[mssql.RetryableError](err)
	switch {
	case never, unsent:
		return tablequeue.Unavailable
	case errors.Is(err, sql.ErrTxDone), errors.Is(err, errMSSQLEnded):
		return tablequeue.Failed
	}
	if answer, ok := errors.AsType[mssql.Error](err); ok && answer.Class < fatal {
		return mssqlClass(answer)
	}
	own, ok := errors.AsType[*mssqlError](err)
	switch {
	case !ok:
		return tablequeue.Failed
	case own.undone:
		return tablequeue.Unavailable
	}
	return tablequeue.Unknown
}

// Severities: from resources on it is the server's fault, from fatal on it ends the connection.
const (
	resources = 17
	fatal     = 20
)

func mssqlClass(answer mssql.Error) tablequeue.Class {
	if answer.Class >= resources {
		return tablequeue.Unavailable
	}
	switch answer.Number {
	case 1205, 3960: // deadlock, snapshot conflict
		return tablequeue.Conflict
	case lockTimeoutExceeded:
		return tablequeue.Locked
	case 0, 3902, 3903, 3930: // the transaction has been ended by the server, or can only be rolled back
		return tablequeue.Failed
	case 976, 978, 983, 3906, // replica not readable or not yet, database read only
		4060, 18452, 18456, // database or login refused
		10928, 10929, 40197, 40501, 40613, 49918, 49919, 49920: // Azure SQL is busy or moving
		return tablequeue.Unavailable
	}
	return tablequeue.Refused
}
