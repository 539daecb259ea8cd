package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	codes "modernc.org/sqlite/lib"
)

// The disk fails: the descriptor of the write-ahead log becomes one that cannot be written.
func TestAnErrorOfTheDiskIsAnOutage(t *testing.T) {
	s, handle := storing(t)
	if _, err := handle(`insert into charges values ('a', null)`); err != nil {
		t.Fatal(err)
	}
	dead, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != s.path+"-wal" {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Dup3(int(dead.Fd()), fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := handle(`pragma cache_spill=1`, `pragma cache_size=1`, `insert into charges values ('b', zeroblob(1000000))`)
	if primary(err) != codes.SQLITE_IOERR || !errors.Is(err, errOnCommit) || !tx.Outage(t.Context(), err) {
		t.Errorf("no outage is the error %v", err)
	}
}
