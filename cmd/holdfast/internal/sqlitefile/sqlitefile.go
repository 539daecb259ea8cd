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

// Open opens the file at path for tables of one's own. It does no I/O yet.
func Open(path string) (*sql.DB, error) {
	// Writers wait for each other: to begin as one is what makes waiting possible.
	return sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_txlock=immediate&_busy_timeout=10000")
}

// Remove removes the file and those that SQLite keeps beside it. Nobody may have it open.
// A file that is not there is no error.
func Remove(path string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
