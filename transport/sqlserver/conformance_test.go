//go:build mssql

package sqlserver_test

import (
	"context"
	"database/sql"
	"fmt"
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
		ShortLease:     m.schema(2 * time.Second),
		PutUndecodable: m.putUndecodable,
		Begin:          m.begin,
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			proxy := brokertest.NewProxy(t, u.Host)
			tr := m.schema(2 * time.Second)(t).(*sqlserver.Transport)
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
