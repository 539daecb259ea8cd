package sqlite

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// commitError is a failed commit.
type commitError struct{ cause error }

func (e *commitError) Error() string { return "commit: " + e.cause.Error() }
func (e *commitError) Unwrap() error { return e.cause }

// functionError is the error of a function given to OnCommit.
type functionError struct{ cause error }

func (e *functionError) Error() string { return "on commit: " + e.cause.Error() }
func (e *functionError) Unwrap() error { return e.cause }

// Classify implements [tablequeue.Store].
func (s *store) Classify(err error) tablequeue.Class {
	if _, ok := errors.AsType[*functionError](err); ok {
		return tablequeue.Failed // the sent messages are not the cause
	}
	if errors.Is(err, transport.ErrNoQueue) {
		return tablequeue.Refused
	}
	if errors.Is(err, errLocked) {
		return tablequeue.Unavailable
	}
	switch primary(err) {
	case codes.SQLITE_CONSTRAINT, codes.SQLITE_TOOBIG, codes.SQLITE_MISMATCH:
		return tablequeue.Refused
	case codes.SQLITE_IOERR:
		// A commit that could not be flushed to the disk may be there after a crash.
		if _, ok := errors.AsType[*commitError](err); ok {
			return tablequeue.Unknown
		}
		return tablequeue.Unavailable
	case codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_FULL, codes.SQLITE_READONLY, codes.SQLITE_CANTOPEN, codes.SQLITE_PERM:
		return tablequeue.Unavailable
	}
	return tablequeue.Failed
}

// primary returns SQLite's primary result code of err, or 0.
func primary(err error) int {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return 0
	}
	return e.Code() & 0xff
}

func isBusy(err error) bool {
	if err == nil {
		return false
	}
	code := primary(err)
	return code == codes.SQLITE_BUSY || code == codes.SQLITE_LOCKED
}

// lockedError is the error of a wait for the lock that ended with ctx.
func lockedError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", errLocked, context.Cause(ctx))
}

var errLocked = errors.New("the file is locked by another transaction: keep those short")

var errReadOnly = errors.New(
	"this user needs write permission on the file, and on its directory for those beside it (-wal, -shm)")

// explain adds advice to an error of SQLite.
func explain(err error) error {
	advice := adviceFor(primary(err))
	if advice == "" {
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}

func adviceFor(code int) string {
	switch code {
	case codes.SQLITE_NOTADB:
		return "the file is not a SQLite database: name another one"
	case codes.SQLITE_READONLY:
		return errReadOnly.Error()
	case codes.SQLITE_CANTOPEN, codes.SQLITE_PERM:
		return "this user needs write permission on the file and on its directory"
	case codes.SQLITE_FULL:
		return "the disk is full: make room and it goes on"
	case codes.SQLITE_CORRUPT:
		return `the file is damaged: stop all who use it, and restore it or try "sqlite3 FILE .recover"`
	case codes.SQLITE_IOERR:
		return "the disk reports an error, or is a network share, on which the file cannot be"
	}
	return ""
}
