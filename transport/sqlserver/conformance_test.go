//go:build mssql

package sqlserver_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/sqlserver"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

// TestConformance is run by make test-mssql. It wants the URL of a server on which the user may
// create schemas.
var schemas atomic.Int64

func TestConformance(t *testing.T) {
	const variable = "HOLDFAST_TEST_MSSQL"
	u, err := url.Parse(os.Getenv(variable))
	if err != nil || u.Scheme != "sqlserver" || u.Port() == "" {
		t.Fatalf("%s is not set to a URL as in sqlserver://user:password@host:1433?database=name", variable) // its text may hold a password
	}
	m := microsoft{url: u.String()}
	transporttest.Run(t, transporttest.Harness{
		Open:           m.schema(0),
		ShortLease:     m.schema(4 * time.Second),
		PutUndecodable: m.putUndecodable,
		Begin:          m.begin,
		Write:          m.write,
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			proxy := brokertest.NewProxy(t, u.Host)
			tr := m.schema(4 * time.Second)(t).(*sqlserver.Transport)
			tr.URL = proxy.URL(t, m.url)
			return tr, proxy
		},
	})
}

// microsoft is a database that the rules share, each with a schema of its own: subscriptions
// are read whole.
type microsoft struct{ url string }

func (m microsoft) schema(lease time.Duration) func(testing.TB) transport.Transport {
	return func(t testing.TB) transport.Transport {
		t.Helper()
		name := fmt.Sprintf("rule_%d_%d", os.Getpid(), schemas.Add(1))
		m.exec(t, "CREATE SCHEMA "+name)
		t.Cleanup(func() {
			m.exec(t, `DECLARE @drop nvarchar(max) = N'';
SELECT @drop += N'DROP TABLE `+name+`.' + quotename(name) + N';' FROM sys.tables WHERE schema_id = schema_id('`+name+`');
EXEC (@drop); DROP SCHEMA `+name)
		})
		return &sqlserver.Transport{URL: m.url, Schema: name, Lease: lease}
	}
}

func (m microsoft) putUndecodable(t testing.TB, tr transport.Transport, queue string) {
	t.Helper()
	table := tr.(*sqlserver.Transport).Schema + ".[" + strings.ReplaceAll(queue, "]", "]]") + "]"
	m.exec(t, "INSERT INTO "+table+` (id, headers, body) VALUES (N'foreign', N'{"not', 0xff)`)
}

func (m microsoft) begin(t testing.TB, _ transport.Transport) transporttest.UserTx {
	t.Helper()
	tx, err := m.open(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.UserTx{
		Tx:       tx,
		Commit:   func(context.Context) error { return tx.Commit() },
		Rollback: func(context.Context) error { return tx.Rollback() },
	}
}

// write writes to a table of the rule's own in a handler's transaction.
func (m microsoft) write(t testing.TB, tr transport.Transport, h transport.HandlerTx) func() bool {
	t.Helper()
	table := tr.(*sqlserver.Transport).Schema + ".writes"
	m.exec(t, "IF object_id('"+table+"') IS NULL CREATE TABLE "+table+" (id bigint PRIMARY KEY)")
	tx, err := sqlserver.Tx(t.Context(), given{h})
	if err != nil {
		t.Fatal(err)
	}
	id := rand.Int64()
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO "+table+" (id) VALUES (@id)", sql.Named("id", id)); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		var n int
		err := m.open(t).QueryRowContext(t.Context(), "SELECT count(*) FROM "+table+" WITH (READPAST) WHERE id = @id", sql.Named("id", id)).Scan(&n)
		if err != nil {
			t.Error(err)
		}
		return n > 0
	}
}

// given is a session of the endpoint with a transaction.
type given struct{ tx transport.HandlerTx }

func (s given) Tx(context.Context) (transport.HandlerTx, error) { return s.tx, nil }

func (m microsoft) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlserver", m.url)
	if err != nil {
		t.Fatal("the URL cannot be opened")
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (m microsoft) exec(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db, err := sql.Open("sqlserver", m.url)
	if err != nil {
		t.Fatal("the URL cannot be opened")
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
