package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*MSSQL)(nil)

// MSSQL has not been exercised against a SQL Server: its statements are held by tests without one, and
// the conformance suite waits for a server (make test-mssql). It is the transport on Microsoft SQL Server
// 2016 or newer and Azure SQL, at compatibility level 130 or above. It may be copied before use and
// opened several times.
//
// SQL Server tells nobody of new rows: a message from another process is found within half a second, one
// of the same process at once.
type MSSQL struct {
	// URL says where the database is: sqlserver://user:password@host:1433?database=shop, or what
	// else github.com/microsoft/go-mssqldb takes. Required.
	URL string
	// Schema holds the queue tables. Empty: dbo. Endpoints that send to each
	// other share it.
	Schema string
	// Lease is how long a received message stays with this process unless it is
	// renewed, and so how long one waits that a crashed process held. 0: 30 s.
	Lease time.Duration
	// MaxTx is how many transactions of handlers may be open at once; further handlers
	// wait for one. Each has a connection. 0: 32.
	MaxTx int
	// SubscriptionRouting is a table of subscriptions in Schema that is shared with endpoints of
	// NServiceBus, which call theirs SubscriptionRouting. Empty: a table of our own.
	SubscriptionRouting string
}

var errMSSQLURL = errors.New("mssql: URL cannot be parsed (it is not shown, it may hold a password): " +
	"want sqlserver://user:password@host:1433?database=name, with special characters in the password percent-encoded")

// Open implements [transport.Transport]. It connects once, to fail early.
func (m *MSSQL) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	set, err := m.settings(env.Endpoint)
	if err != nil {
		return nil, err
	}
	cfg, err := m.config(env)
	if err != nil {
		return nil, err
	}
	s := newMSSQLStore(connector{mssql.NewConnectorConfig(cfg)}, set)
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return tablequeue.Open(s, tablequeue.Config{Lease: m.Lease, MaxBody: MaxBody, Env: env}), nil
}

// settings checks what is not about the connection.
func (m *MSSQL) settings(endpoint string) (settings, error) {
	if m.Lease < 0 || m.MaxTx < 0 {
		return settings{}, fmt.Errorf("mssql: Lease %v and MaxTx %d may not be negative", m.Lease, m.MaxTx)
	}
	set := settings{
		schema: cmp.Or(m.Schema, "dbo"), routing: m.SubscriptionRouting,
		maxTx: cmp.Or(m.MaxTx, defaultMaxTx), endpoint: endpoint,
	}
	err := checkMSSQLName("schema", set.schema)
	if err == nil && set.routing != "" {
		err = checkMSSQLName("table", set.routing)
	}
	return set, err
}

// config checks what can be checked without a server.
func (m *MSSQL) config(env transport.Env) (msdsn.Config, error) {
	if m.URL == "" {
		return msdsn.Config{}, errors.New("mssql: URL is empty: set MSSQL.URL")
	}
	cfg, err := msdsn.Parse(m.URL)
	if err != nil {
		return msdsn.Config{}, errMSSQLURL // err may quote parts of the password
	}
	if cfg.AppName == "go-mssqldb" { // nobody chose it
		cfg.AppName = "holdfast " + env.Endpoint
	}
	return cfg, nil
}

// mssqlPool is how many connections claim, write and look.
const mssqlPool = 4

func mssqlDB(c connector, size int) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db
}
