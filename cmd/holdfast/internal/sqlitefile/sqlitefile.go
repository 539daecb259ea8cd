// Package sqlitefile opens and removes the file of an SQLite transport beside the transport.
package sqlitefile

import (
	"database/sql"
	"errors"
	"io/fs"
	"net/url"
	"os"

	_ "modernc.org/sqlite" // the driver "sqlite", which the transport uses too
)

// Open opens the file at path, for tables beside those of the transport. It does no I/O yet.
func Open(path string) (*sql.DB, error) {
	// Only a transaction that begins as a writer waits for others.
	return sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_txlock=immediate&_busy_timeout=10000")
}

// Remove deletes the file and those that SQLite keeps beside it. No process may have it open. A
// missing file is no error.
func Remove(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
