package brokertest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PgBouncer returns two URLs of a database as of [Postgres]: a direct one, and one through a
// pgbouncer of the test binary's own that pools transactions. Versions before 1.21, such as Debian
// 12's, must not be asked to cancel a statement: they may crash when the client disconnects
// meanwhile (pgbouncer #801, #904).
func PgBouncer(t testing.TB) (straight, pooled string) {
	t.Helper()
	straight = Postgres(t)
	n := share(t, ownPgBouncer)
	u, err := url.Parse(straight)
	must(t, err)
	pooled = n.server.url(u.Path[1:])
	if !endsItselfAtCancels(t) {
		return straight, pooled
	}
	way, err := url.Parse(pooled)
	must(t, err)
	proxy := NewProxy(t, way.Host)
	proxy.CutAt(cancelRequest, math.MaxInt)
	return straight, proxy.URL(t, pooled)
}

// cancelRequest is the start of a connection that only cancels the statement of another: its length
// and code (PostgreSQL 15, "Message Formats").
const cancelRequest = "\x00\x00\x00\x10\x04\xd2\x16\x2e"

func endsItselfAtCancels(t testing.TB) bool {
	t.Helper()
	program, err := bouncerProgram()
	must(t, err)
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		t.Fatalf("pgbouncer --version: %v", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		t.Fatalf("pgbouncer --version says %q: %v", out, err)
	}
	return major == 1 && minor < 21
}

func bouncerProgram() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", errors.New("a test needs pgbouncer on this machine: install it, as \"make brokers-up\" does on Debian and Ubuntu")
}

var ownPgBouncer = sync.OnceValues(func() (*server, error) {
	program, err := bouncerProgram()
	if err != nil {
		return nil, err
	}
	behind, err := pgx.ParseConfig(cmp.Or(os.Getenv(postgresVariable), postgresDefault))
	if err != nil {
		return nil, fmt.Errorf("%s is not a PostgreSQL URL", postgresVariable)
	}
	s, err := newServer("pgbouncer")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(s.dir, "pgbouncer.ini")
	if err := os.WriteFile(config, []byte(bouncerConfig(behind, s.port)), 0o600); err != nil {
		return nil, err
	}
	s.program = func() *exec.Cmd { return exec.Command(program, config) }
	s.url = func(database string) string {
		return fmt.Sprintf("postgres://anybody@%s/%s?sslmode=disable", loopback(s.port), database)
	}
	s.answers = func() error { return connected(s.url(behind.Database), ping) }
	if err := s.runAsPostgres(); err != nil {
		return nil, err
	}
	return s, s.own(config)
})

// bouncerConfig accepts every user of this machine as the tests' user. Few connections lead to the
// server, so that a transaction hardly ever uses the same session as the one before.
func bouncerConfig(behind *pgx.ConnConfig, port int) string {
	password := ""
	if behind.Password != "" {
		password = " password='" + strings.ReplaceAll(behind.Password, "'", "''") + "'"
	}
	return fmt.Sprintf(`[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 2000
default_pool_size = 8
server_idle_timeout = 5
server_login_retry = 0.05
server_reset_query =
ignore_startup_parameters = search_path
`, behind.Host, behind.Port, behind.User, password, port)
}
