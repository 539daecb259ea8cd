package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// db is the file of a store: one connection that writes, and a few that read. The parts of the
// store share it.
type db struct {
	path string
	file *identity

	write  *sql.DB
	read   *sql.DB
	writer *writer
	first  *sql.Stmt // on read: returns when the first row of a queue becomes visible
	find   *sql.Stmt // on read: looks for keys in an inbox

	clock clock
}

// prepare migrates the tables and prepares the statements. It can be repeated.
func (d *db) prepare(ctx context.Context) (err error) {
	if err := useWAL(ctx, d.writer.conn); err != nil {
		return err
	}
	if err := checkWritable(d.writer.conn); err != nil {
		return err
	}
	if err := migrate(ctx, d.writer.conn, migrations); err != nil {
		return err
	}
	if err := createInboxTables(ctx, d.writer.conn); err != nil {
		return err
	}
	if err := d.writer.prepare(ctx); err != nil {
		return err
	}
	info, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	d.file = &identity{path: d.path, info: info}
	d.writer.file = d.file
	if d.first, err = d.read.PrepareContext(ctx, firstVisible); err != nil {
		return err
	}
	d.find, err = d.read.PrepareContext(ctx, findKeys)
	return err
}

func (d *db) disconnect() error {
	var err error
	if d.writer != nil {
		err = d.writer.finalize()
	}
	// The readers first: the last connection has to be one that can checkpoint.
	return errors.Join(err, d.read.Close(), d.write.Close())
}

// each executes a statement for each name, which is its first argument, in one transaction.
func (d *db) each(
	ctx context.Context, what string, names []string, query string, args ...any,
) error {
	return d.writer.do(ctx, durable, func(tx *sql.Tx) error {
		for _, name := range names {
			if _, err := tx.Exec(query, append([]any{name}, args...)...); err != nil {
				return fmt.Errorf("%s %q: %w", what, name, err)
			}
		}
		return nil
	})
}

// query calls row for each row of a query.
func (d *db) query(
	ctx context.Context, row func(*sql.Rows) error, query string, args ...any,
) error {
	var rows *sql.Rows
	err := unlessBusy(ctx, func() (err error) {
		rows, err = d.read.QueryContext(ctx, query, args...) //nolint:sqlclosecheck // closed below
		return err
	})
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

const maxName = 255 // bytes of a queue's name

// Check implements [tablequeue.Queues].
func (d *db) Check(queue string) error {
	if queue == "" || len(queue) > maxName || !utf8.ValidString(queue) {
		return fmt.Errorf("sqlite: queue name %q: want 1 to %d bytes of UTF-8", queue, maxName)
	}
	return nil
}

// micros returns a time as the file stores it: in microseconds since 1970.
func micros(t time.Time) int64 { return t.UnixMicro() }

// farthest is the latest time that the file stores. A later one is stored as this.
const farthest = 1 << 62

// instant is micros for a user's time, which may be out of the range of microseconds.
func instant(t time.Time) int64 {
	return max(0, min(t.Unix(), farthest/1_000_000-1))*1e6 + int64(t.Nanosecond()/1e3)
}

func later(now int64, d time.Duration) int64 { return min(now+d.Microseconds(), farthest) }

// errOtherFile is for a path at which there is no file any more, or another file. SQLite goes on
// with the deleted file, which no other process can open.
var errOtherFile = errors.New("the file was deleted or replaced while it is open: put the file back, or restart all processes that use it")

// identityEach is the time between two looks at the file by statements that only read.
const identityEach = time.Second

// identity is the file that was opened. The methods are safe for concurrent use.
type identity struct {
	path string
	info os.FileInfo

	mu   sync.Mutex // guards the rest
	last time.Time  // of the last look
	err  error      // of the last look
}

// check returns errOtherFile if the path does not lead to the file that was opened. Any other error
// of the look is not reported: statements report it.
func (i *identity) check() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.look()
}

// checkSometimes is check at most once each second. In between it returns the error of the last
// look.
func (i *identity) checkSometimes() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.last) < identityEach {
		return i.err
	}
	return i.look()
}

// look looks at the path. Called with mu held.
func (i *identity) look() error {
	now, err := os.Stat(i.path)
	i.last, i.err = time.Now(), nil
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, i.info) {
		i.err = fmt.Errorf("%q: %w", i.path, errOtherFile)
	}
	return i.err
}

var (
	// errCommit marks a failed commit.
	errCommit = errors.New("commit")
	// errOnCommit marks the error of a function given to OnCommit.
	errOnCommit = errors.New("on commit")
	errLocked   = errors.New("the file is locked by another transaction: keep those short")
	errReadOnly = errors.New(
		"this user needs write permission on the file, and on its directory for those beside it (-wal, -shm)")
)

// Classify returns the class of err, for [tablequeue.Store].
func (d *db) Classify(err error) tablequeue.Class {
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
func (d *db) Outage(ctx context.Context, err error) bool {
	if errors.Is(err, errOtherFile) {
		return true
	}
	switch primary(err) {
	case codes.SQLITE_FULL, codes.SQLITE_IOERR:
		return true
	case codes.SQLITE_READONLY:
		asked := d.writer.do(ctx, lease, func(*sql.Tx) error {
			_, err := d.writer.change(forgetKey, "", []byte{}) // changes nothing, and fails where it could not
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
