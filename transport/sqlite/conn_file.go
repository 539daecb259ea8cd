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
)

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
	s := &store{
		path:  abs,
		write: connect(abs, "_txlock=immediate&_synchronous="+synchronous, 1, texts, statements),
		read:  connect(abs, "_query_only=1", maxReaders, nil, nil),
	}
	s.clock.wall, s.clock.Log = time.Now, slog.New(slog.DiscardHandler)
	s.clock.Restore, s.clock.MaxRestored = restorer(s), maxRestored
	conn, err := connection(ctx, s.write)
	if err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	s.writer = newWriter(s.write, conn, texts, statements, relaxed)
	if err := unlessBusy(ctx, func() error { return s.prepare(ctx) }); err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
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
