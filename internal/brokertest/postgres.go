package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	postgresVariable = "HOLDFAST_TEST_POSTGRES"
	postgresDefault  = "postgres://postgres@127.0.0.1:5432/test?sslmode=disable"
)

// Postgres returns the URL of a database that is dropped after the test, on the server of
// HOLDFAST_TEST_POSTGRES, or on this machine's. Where databases cannot be created it is that
// of the server's database with a new schema first in its search path.
func Postgres(t testing.TB) string {
	t.Helper()
	server := cmp.Or(os.Getenv(postgresVariable), postgresDefault)
	config, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatalf("%s is not a PostgreSQL URL", postgresVariable) // its text may hold a password
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s is not a URL", postgresVariable)
	}
	need(t, "PostgreSQL", fmt.Sprintf("%s:%d", config.Host, config.Port), postgresVariable)

	swept.Do(func() { sweepPostgres(server) })
	name := unique()
	quoted := pgx.Identifier{name}.Sanitize()
	// A copy of files takes less than a twentieth of the default strategy's time. PostgreSQL before
	// 15 knows no other.
	if execute(server, "CREATE DATABASE "+quoted+" STRATEGY file_copy") == nil || execute(server, "CREATE DATABASE "+quoted) == nil {
		dropAfter(t, server, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)")
		u.Path = "/" + name
		return u.String()
	}
	if err := execute(server, "CREATE SCHEMA "+quoted); err != nil {
		t.Fatalf("neither a database nor a schema can be created for the test: %v", err)
	}
	dropAfter(t, server, "DROP SCHEMA "+quoted+" CASCADE")
	query := u.Query()
	query.Set("search_path", quoted)
	u.RawQuery = query.Encode()
	return u.String()
}

var swept sync.Once

// sweepPostgres drops the databases of killed tests, as far as it has the right to. The next run
// tries it again.
func sweepPostgres(server string) {
	_ = connected(server, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT datname FROM pg_database")
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, name := range names {
			if leftBehind(name) {
				_, _ = c.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
			}
		}
		return err
	})
}

func dropAfter(t testing.TB, server, statement string) {
	t.Cleanup(func() {
		if err := execute(server, statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	})
}

// execute executes a statement over the connection that the tests of the process share: a
// connection costs more than most statements.
func execute(server, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	postgresAdmin.mu.Lock()
	defer postgresAdmin.mu.Unlock()
	// The server may have been killed since.
	if postgresAdmin.server != server || postgresAdmin.conn.Ping(ctx) != nil {
		c, err := pgx.Connect(ctx, server)
		if err != nil {
			return err
		}
		if postgresAdmin.conn != nil {
			_ = postgresAdmin.conn.Close(ctx)
		}
		postgresAdmin.server, postgresAdmin.conn = server, c
	}
	_, err := postgresAdmin.conn.Exec(ctx, statement)
	return err
}

// postgresAdmin is the connection of execute. It ends with the process.
var postgresAdmin struct {
	mu     sync.Mutex // guards the rest
	server string
	conn   *pgx.Conn // nil before the first statement
}

func connected(server string, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer c.Close(ctx)
	return f(ctx, c)
}
