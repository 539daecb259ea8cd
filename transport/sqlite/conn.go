package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var (
	_ tablequeue.Waker   = (*store)(nil)
	_ tablequeue.Outages = (*store)(nil)
)

// store is the SQLite dialect of the lease engine: one connection that writes, and a few that read.
type store struct {
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
func (s *store) prepare(ctx context.Context) (err error) {
	if err := useWAL(ctx, s.writer.conn); err != nil {
		return err
	}
	if err := checkWritable(s.writer.conn); err != nil {
		return err
	}
	if err := migrate(ctx, s.writer.conn, migrations); err != nil {
		return err
	}
	if err := createInboxTables(ctx, s.writer.conn); err != nil {
		return err
	}
	if err := s.writer.prepare(ctx); err != nil {
		return err
	}
	info, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	s.file = &identity{path: s.path, info: info}
	s.writer.file = s.file
	if s.first, err = s.read.PrepareContext(ctx, firstVisible); err != nil {
		return err
	}
	s.find, err = s.read.PrepareContext(ctx, findKeys)
	return err
}

// connection opens a connection, which reads the file and so may have to wait for a lock.
func connection(ctx context.Context, db *sql.DB) (conn *sql.Conn, err error) {
	err = unlessBusy(ctx, func() error {
		conn, err = db.Conn(ctx)
		return err
	})
	return conn, err
}

// useWAL sets the journal mode, in which readers and the writer do not block each other. The file
// keeps it.
func useWAL(ctx context.Context, conn *sql.Conn) error {
	var mode string
	if err := conn.QueryRowContext(ctx, "pragma journal_mode=wal").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the journal mode stays %q: the file system may not allow write-ahead logging", mode)
	}
	// Truncates the file after a large transaction.
	_, err := conn.ExecContext(ctx, "pragma journal_size_limit=67108864")
	return err
}

// checkWritable reports a file that cannot be written, which SQLite would report at the first
// write.
func checkWritable(conn *sql.Conn) error {
	return conn.Raw(func(driver any) error {
		file, ok := driver.(interface {
			IsReadOnly(schema string) (bool, error)
		})
		if !ok {
			return nil
		}
		readOnly, err := file.IsReadOnly("main")
		if err == nil && readOnly {
			err = errReadOnly
		}
		return err
	})
}

// Close implements [tablequeue.Store].
func (s *store) Close() error {
	s.writer.close()
	return failed(s.disconnect(), "close")
}

func (s *store) disconnect() error {
	var err error
	if s.writer != nil {
		err = s.writer.finalize()
	}
	// The readers first: the last connection has to be one that can checkpoint.
	return errors.Join(err, s.read.Close(), s.write.Close())
}

const maxName = 255 // bytes of a queue's name

// Check implements [tablequeue.Queues].
func (s *store) Check(queue string) error {
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
