package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	// errCommit marks a failed commit.
	errCommit = errors.New("commit")
	// errOnCommit marks the error of a function given to OnCommit.
	errOnCommit = errors.New("on commit")
	errLocked   = errors.New("the file is locked by another transaction: keep those short")
	errReadOnly = errors.New(
		"this user needs write permission on the file, and on its directory for those beside it (-wal, -shm)")
)

// Classify implements [tablequeue.Store].
func (s *store) Classify(err error) tablequeue.Class {
	switch {
	case errors.Is(err, errOnCommit):
		return tablequeue.Failed // the sent messages are not the cause
	case errors.Is(err, errRecordChanged):
		return tablequeue.Conflict
	case errors.Is(err, transport.ErrNoQueue), errors.Is(err, tablequeue.ErrNoTimers):
		return tablequeue.Refused
	case errors.Is(err, errLocked), errors.Is(err, errOtherFile):
		return tablequeue.Unavailable
	}
	switch primary(err) {
	case codes.SQLITE_CONSTRAINT, codes.SQLITE_TOOBIG, codes.SQLITE_MISMATCH,
		codes.SQLITE_ERROR: // as by a trigger
		return tablequeue.Refused
	case codes.SQLITE_IOERR:
		// A commit that could not be flushed to the disk may be there after a crash.
		if errors.Is(err, errCommit) {
			return tablequeue.Unknown
		}
		return tablequeue.Unavailable
	case codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_FULL, codes.SQLITE_READONLY, codes.SQLITE_CANTOPEN, codes.SQLITE_PERM:
		return tablequeue.Unavailable
	}
	return tablequeue.Failed
}

// Outage implements [tablequeue.Outages]. A function of OnCommit may have written to another file
// that is read-only, so this one is asked.
func (s *store) Outage(ctx context.Context, err error) bool {
	if errors.Is(err, errOtherFile) {
		return true
	}
	switch primary(err) {
	case codes.SQLITE_FULL, codes.SQLITE_IOERR:
		return true
	case codes.SQLITE_READONLY:
		asked := s.writer.do(ctx, lease, func(*sql.Tx) error {
			_, err := s.writer.change(forgetKey, "", []byte{}) // changes nothing, and fails where it could not
			return err
		})
		return primary(asked) == codes.SQLITE_READONLY
	}
	return false
}

// primary returns SQLite's primary result code of err, or 0.
func primary(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool {
	code := primary(err)
	return code == codes.SQLITE_BUSY || code == codes.SQLITE_LOCKED
}

// lockedError is the error of a wait for the lock that ended with ctx.
func lockedError(ctx context.Context) error {
	return fmt.Errorf("%w: %w", errLocked, context.Cause(ctx))
}

// failed returns the error of an operation that failed with err, or nil if err is nil.
func failed(err error, operation string, args ...any) error {
	if err == nil {
		return nil
	}
	if primary(err) == codes.SQLITE_TOOBIG {
		err = fmt.Errorf("%w: %w", transport.ErrTooLarge, err)
	}
	return fmt.Errorf("sqlite: "+operation+": %w", append(args, explain(err))...)
}

// explain adds advice to an error of SQLite.
func explain(err error) error {
	if advice := advices[primary(err)]; advice != "" {
		return fmt.Errorf("%s: %w", advice, err)
	}
	return err
}

const noPermission = "this user needs write permission on the file and on its directory"

// advices are for primary result codes.
var advices = map[int]string{
	codes.SQLITE_NOTADB:   "the file is not a SQLite database: name another one",
	codes.SQLITE_READONLY: errReadOnly.Error(),
	codes.SQLITE_CANTOPEN: noPermission,
	codes.SQLITE_PERM:     noPermission,
	codes.SQLITE_FULL:     "the disk is full: make room and it goes on",
	codes.SQLITE_CORRUPT:  `the file is damaged: stop all who use it, and restore it or try "sqlite3 FILE .recover"`,
	codes.SQLITE_IOERR:    "the disk reports an error, or is a network share, on which the file cannot be",
}
