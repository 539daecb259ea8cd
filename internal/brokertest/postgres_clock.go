package brokertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Clock is the clock of a server, which differs from the machine's.
type Clock struct {
	t    testing.TB
	file string
}

// Set makes the clock differ from the machine's by ahead, at once. The monotonic clock, by which
// the server waits, goes on.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	must(c.t, c.set(ahead))
}

// set replaces the file at once: the server may read half of a file that is written.
func (c *Clock) set(ahead time.Duration) error {
	text := fmt.Sprintf("%+.3f\n", ahead.Seconds())
	if err := os.WriteFile(c.file+".new", []byte(text), 0o644); err != nil { //nolint:gosec // the server's user reads it
		return err
	}
	return os.Rename(c.file+".new", c.file)
}

// ClockPostgres is [OwnPostgres] with a clock that the test sets. It needs libfaketime.
func ClockPostgres(t testing.TB) (*Node, *Clock) {
	t.Helper()
	n := own(t, clockPostgres)
	clock := &Clock{t, clockOf(n.server)}
	t.Cleanup(func() { clock.Set(0) })
	name := unique()
	must(t, execute(n.server.url("postgres"), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()))
	n.URL = n.server.url(name)
	return n, clock
}

var clockPostgres = sync.OnceValues(func() (*server, error) {
	library, err := faketime()
	if err != nil {
		return nil, err
	}
	s, err := postgresServer("postgres-clock")
	if err != nil {
		return nil, err
	}
	s.variables = []string{
		"LD_PRELOAD=" + library, "FAKETIME_TIMESTAMP_FILE=" + clockOf(s),
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1",
	}
	return s, (&Clock{file: clockOf(s)}).set(0)
})

// clockOf returns the path of the file with the difference of the server's clock.
func clockOf(s *server) string { return filepath.Join(s.dir, "clock") }

// faketime returns the path of the library that changes the clock of a process.
func faketime() (string, error) {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1") // the pattern is well-formed
	if len(found) == 0 {
		return "", errors.New("a test that sets the clock of PostgreSQL needs libfaketime on this machine: " +
			"install it, as \"make brokers-up\" does on Debian and Ubuntu")
	}
	return slices.Max(found), nil
}
