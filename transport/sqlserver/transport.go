package sqlserver

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// MaxBody is the largest body of a message in bytes. A larger one is refused with a
// [*transport.TooLargeError].
const MaxBody = tablequeue.MaxBody

// Transport is the transport on Microsoft SQL Server 2016 or newer and Azure SQL, at compatibility
// level 130 or above. It may be copied before use and opened several times.
type Transport struct {
	// URL is the database to connect to: sqlserver://user:password@host:1433?database=shop, or
	// another form that github.com/microsoft/go-mssqldb accepts. Required unless Connector is set.
	URL string
	// Connector opens the connections instead of URL. It is a connector of
	// github.com/microsoft/go-mssqldb, or wraps one, for instance to supply a password or a token
	// that changes: it is called for each new connection. It must return within a minute, and when
	// its context ends. It must be safe for concurrent use.
	Connector driver.Connector
	// Schema is the database schema of the queue tables. Endpoints that send to each other share
	// it. Empty: dbo.
	Schema string
	// Lease is the time for which a received message is invisible to other receivers, unless the
	// lease is renewed. When a process crashes, its messages are delivered again after this time.
	// 0: 30 s.
	Lease time.Duration
	// MaxTx is the maximum number of open transactions of handlers. Further handlers wait. Each
	// transaction uses one connection. 0: 32.
	MaxTx int
	// SubscriptionRouting is the name of a table of subscriptions in Schema that is shared with
	// NServiceBus endpoints, whose default name for it is SubscriptionRouting. Empty: a table of
	// the driver's own.
	SubscriptionRouting string
	// Adopt makes Install, and Script, take over the queue tables that NServiceBus has created:
	// they get columns and indexes, and keep their messages. A table with other columns than
	// NServiceBus's, or with triggers for example, is refused. Shared queues, such as the error
	// queue, are used as they are. Tables of version 1 of this transport are rewritten as tables of
	// the present version. Stop the endpoints that receive from these tables before.
	Adopt bool
}

// System returns "microsoft.sql_server".
func (*Transport) System() string { return "microsoft.sql_server" }

// Open implements [transport.Transport]. It connects once, to fail early.
func (m *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	set, err := m.settings(env.Endpoint)
	if err != nil {
		return nil, err
	}
	opens, err := m.connector(env)
	if err != nil {
		return nil, fmt.Errorf("sqlserver: %w", err)
	}
	s := newStore(connector{opens}, set)
	s.adopts, s.log, s.clock.Log = m.Adopt, env.Log(), env.Log()
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return tablequeue.Open(s.parts(), tablequeue.Config{Lease: m.Lease, Env: env}), nil
}

// settings checks the fields that are not about connections.
func (m *Transport) settings(endpoint string) (dialect.Settings, error) {
	set := dialect.Settings{Schema: m.Schema, MaxTx: m.MaxTx, Endpoint: endpoint, Routing: m.SubscriptionRouting}
	return set.Complete("sqlserver", m.Lease, "dbo", checkName)
}

// connector returns the caller's connector, or one to URL. It does no I/O.
func (m *Transport) connector(env transport.Env) (driver.Connector, error) {
	switch {
	case m.Connector != nil && m.URL != "":
		return nil, errors.New("both URL and Connector are set: set one of them")
	case m.Connector != nil:
		return m.Connector, nil
	case m.URL == "":
		return nil, errors.New("URL is empty: set Transport.URL, or Transport.Connector")
	}
	cfg, err := m.config(env)
	if err != nil {
		return nil, err
	}
	return mssql.NewConnectorConfig(cfg), nil
}

func (m *Transport) config(env transport.Env) (msdsn.Config, error) {
	cfg, err := parse(m.URL)
	if err == nil && cfg.AppName == "go-mssqldb" { // the default
		cfg.AppName = "holdfast " + env.Endpoint
	}
	return cfg, err
}

// clientOptions are the options of go-mssqldb that a URL may have.
var clientOptions = []string{
	msdsn.AppName, msdsn.ApplicationIntent, msdsn.Certificate, msdsn.ChangePassword, msdsn.ConnectionTimeout,
	msdsn.Database, msdsn.DialTimeout, msdsn.DisableRetry, msdsn.Encrypt, msdsn.EpaEnabled, msdsn.FailOverPort,
	msdsn.FailoverPartner, msdsn.FailoverPartnerSpn, msdsn.GuidConversion, msdsn.HostNameInCertificate,
	msdsn.KeepAlive, msdsn.LogParam, msdsn.MultiSubnetFailover, msdsn.NoTraceID, msdsn.PacketSize, msdsn.Password,
	msdsn.Pipe, msdsn.Port, msdsn.Protocol, msdsn.Server, msdsn.ServerCertificate, msdsn.ServerSpn, msdsn.TLSMin,
	msdsn.Timezone, msdsn.TrustServerCertificate, msdsn.UserID, msdsn.WorkstationID,
}

// ParseURL returns the transport of a URL such as
// sqlserver://user:password@host:1433?database=shop&schema=app. The options schema, lease, max_tx
// and subscription_routing set the fields of those names. Further options are those of
// github.com/microsoft/go-mssqldb; an unknown one is an error that names it. No error repeats the
// URL, which may hold a password.
func ParseURL(raw string) (*Transport, error) {
	t := &Transport{}
	own := dialect.Options{
		"schema": &t.Schema, "lease": &t.Lease, "max_tx": &t.MaxTx, "subscription_routing": &t.SubscriptionRouting,
	}
	var err error
	if t.URL, err = own.ParseURL(raw, "sqlserver"); err != nil {
		return nil, fmt.Errorf("sqlserver: %w", err)
	}
	cfg, err := parse(t.URL)
	if err == nil {
		err = own.Check(maps.Keys(cfg.Parameters), clientOptions)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlserver: %w", err)
	}
	return t, nil
}

var errURL = errors.New("URL cannot be parsed (it is not shown, it may hold a password): " +
	"want sqlserver://user:password@host:1433?database=name, with special characters in the password percent-encoded")

func parse(url string) (msdsn.Config, error) {
	cfg, err := msdsn.Parse(url)
	if err != nil {
		return msdsn.Config{}, errURL // err may quote parts of the password
	}
	return cfg, nil
}
