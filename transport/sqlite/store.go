package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// store is the SQLite dialect of the lease engine. Its parts share the file.
type store struct {
	*db
	*claimer
	*flusher
	*topology
	*inboxStore

	browser      *browser
	recordStore  *recordStore
	transactions *transactions
}

func newStore(d *db) *store {
	s := &store{
		db: d, claimer: &claimer{d}, flusher: &flusher{d}, browser: &browser{d},
		topology: &topology{d}, inboxStore: &inboxStore{d},
	}
	s.recordStore = &recordStore{db: d, inboxes: s.inboxStore}
	s.transactions = &transactions{db: d, records: s.recordStore}
	s.clock.Restore, s.clock.MaxRestored = s.restore, maxRestored
	return s
}

// parts returns s for the engine. SQLite has no clock of the database, no locks of single tables
// and no tables of NServiceBus.
func (s *store) parts() tablequeue.Store {
	return tablequeue.Store{
		Queues:        s,
		Browsing:      s.browser,
		Topology:      s.topology,
		Subscriptions: s.topology,
		Transactions:  s.transactions,
		Inboxes:       s.inboxStore,
		Classify:      s.Classify,
		Close:         s.Close,

		Waker:    s.claimer,
		Hastener: s.claimer,
		Outages:  s.db,
		Records:  s.recordStore,
	}
}

// Close closes the store, for [tablequeue.Store].
func (s *store) Close() error {
	s.writer.close()
	return failed(s.disconnect(), "close")
}

// open opens the file at path and prepares it.
func open(ctx context.Context, path string, relaxed bool) (_ *store, err error) {
	defer func() { err = failed(err, "open %q", path) }()
	if err := checkPath(path); err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	synchronous := "FULL"
	if relaxed {
		synchronous = "NORMAL"
	}
	texts, statements := &texts{}, &interrupter{}
	d := &db{
		path:  abs,
		write: connect(abs, "_txlock=immediate&_synchronous="+synchronous, 1, texts, statements),
		read:  connect(abs, "_query_only=1", maxReaders, nil, nil),
	}
	d.clock.wall, d.clock.Log = time.Now, slog.New(slog.DiscardHandler)
	conn, err := connection(ctx, d.write)
	if err != nil {
		return nil, errors.Join(err, d.disconnect())
	}
	d.writer = newWriter(d.write, conn, texts, statements, relaxed)
	if err := unlessBusy(ctx, func() error { return d.prepare(ctx) }); err != nil {
		return nil, errors.Join(err, d.disconnect())
	}
	s := newStore(d)
	go s.writer.loop()
	return s, nil
}

// maxReaders is the number of connections that read: one listens.
const maxReaders = 4

// checkPath refuses paths that SQLite would not take for a file, or could not open without
// reporting the reason.
func checkPath(path string) error {
	if path == "" {
		return errors.New("no file: set Transport.Path")
	}
	if path == ":memory:" || strings.HasPrefix(path, "file:") {
		return errors.New("not a path: name a file, or use transport/inmemory to keep messages in memory")
	}
	switch dir, err := os.Stat(filepath.Dir(path)); {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no directory %q: create it first", filepath.Dir(path))
	case err != nil:
		return err
	case !dir.IsDir():
		return fmt.Errorf("%q is not a directory", filepath.Dir(path))
	}
	if file, err := os.Stat(path); err == nil && !file.Mode().IsRegular() {
		return errors.New("not a regular file: name another one")
	}
	return nil
}

// connect returns a pool of connections to a file. It does no I/O. The connections do not wait for
// locks: they would block a thread meanwhile, and sleep for up to 100 ms.
func connect(
	abs, params string, most int, texts *texts, statements *interrupter,
) *sql.DB {
	p := filepath.ToSlash(abs)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // a Windows drive
	}
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: p, RawQuery: "_busy_timeout=0&" + params}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		panic(err) //nolint:forbidigo // only where no driver has that name
	}
	if texts != nil {
		_ = db.Close() // it was needed for its driver
		db = sql.OpenDB(readingTexts{db.Driver(), dsn.String(), texts, statements})
	}
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db
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

// unlessBusy repeats f while another connection holds the lock that it needs. The pauses are short
// and random: SQLite has no queue for its lock, so that the most frequent attempts win.
func unlessBusy(ctx context.Context, f func() error) error {
	pause := backoff.Backoff{Min: minBusy, Max: maxBusy}
	for {
		err := f()
		if !isBusy(err) {
			return err
		}
		if pause.Wait(ctx) != nil {
			return lockedError(ctx)
		}
	}
}

const (
	minBusy = 200 * time.Microsecond
	maxBusy = 4 * time.Millisecond
)
