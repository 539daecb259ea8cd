package brokertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// OwnPostgres returns a PostgreSQL server of the test binary's own, with an empty database.
// [os.Interrupt] makes it end all connections and shut down ("fast"), syscall.SIGQUIT end at once
// ("immediate").
func OwnPostgres(t testing.TB) *Node {
	t.Helper()
	n := own(t, ownPostgres)
	name := unique()
	must(t, execute(n.server.url("postgres"), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()))
	n.URL = n.server.url(name)
	return n
}

var ownPostgres = sync.OnceValues(func() (*server, error) { return postgresServer("postgres") })

// postgresServer returns a server that has not been started.
func postgresServer(name string) (*server, error) {
	initdb, err := postgresProgram("initdb")
	if err != nil {
		return nil, err
	}
	s, err := newServer(name)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, "data")
	s.program = func() *exec.Cmd {
		// Tests kill the process and not the machine, so the system's cache is durable enough.
		cmd := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", strconv.Itoa(s.port),
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off")
		cmd.Env = append(os.Environ(), s.variables...)
		return cmd
	}
	s.url = func(database string) string {
		return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopback(s.port), database)
	}
	s.answers = func() error { return connected(s.url("postgres"), ping) }
	if err := s.runAsPostgres(); err != nil {
		return nil, err
	}
	return s, s.createData(initdb, data)
}

// ping asks a server over a connection of its own: a session of a server that was killed may still
// answer.
func ping(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) }

func (s *server) createData(initdb, data string) error {
	cmd := exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir = s.dir
	s.user(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// runAsPostgres makes the server run as the system's user postgres if the tests run as root, which
// it refuses.
func (s *server) runAsPostgres() error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	s.user = func(cmd *exec.Cmd) { as(cmd, uint32(uid), uint32(gid)) }
	s.own = func(path string) error { return os.Chown(path, int(uid), int(gid)) }
	return s.own(s.dir)
}

// postgresProgram returns the path of a program of the server, which Debian does not put on the
// PATH.
func postgresProgram(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is well-formed
	if len(found) == 0 {
		return "", errors.New("a test that restarts PostgreSQL needs its programs on this machine: " +
			"install postgresql, as \"make brokers-up\" does on Debian and Ubuntu")
	}
	return slices.Max(found), nil
}
