package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// MaxBody is the largest body of a message in bytes. A larger one is refused with a
// [*transport.TooLargeError].
const MaxBody = tablequeue.MaxBody

// Transport is the transport on PostgreSQL. It may be copied before use, and opened several times,
// also at once.
type Transport struct {
	// URL is the database to connect to, as a URL or as "key=value" pairs. Omitted parts are read
	// from the PG* environment variables. Required unless Pool is set.
	URL string
	// Pool is used instead of connections to URL. The caller owns it, and closes it after the last
	// endpoint has stopped. Transactions of handlers use at most MaxConns-2 of its connections, so
	// MaxConns must be at least 3. The driver opens further connections with Pool's configuration,
	// including its BeforeConnect and tracer: one that listens, and up to two that renew leases, so
	// that renewal never waits for a connection of the pool.
	Pool *pgxpool.Pool
	// Schema is the database schema of the queue tables. Endpoints that send to each other share
	// it. Empty: public.
	Schema string
	// Lease is the time for which a received message is invisible to other receivers, unless the
	// lease is renewed. When a process crashes, its messages are delivered again after this time.
	// 0: 30 s.
	Lease time.Duration
	// MaxTx is the maximum number of open transactions of handlers. Further handlers wait. Each
	// transaction uses one connection. 0: 32.
	MaxTx int
	// Pooled must be set if URL or Pool connects to a proxy that pools transactions, such as
	// pgbouncer with pool_mode transaction. The driver then uses no session settings and no
	// prepared statements.
	Pooled bool
	// ListenURL is the server on which the driver listens for notifications: with Pooled, the
	// server behind the proxy. Empty: URL or Pool; with Pooled, none, and idle receivers poll every
	// 500 ms.
	ListenURL string
	// SubscriptionRouting is the name of a table of subscriptions in Schema that is shared with
	// NServiceBus endpoints, whose default name for it is SubscriptionRouting. Empty: a table of
	// the driver's own.
	SubscriptionRouting string
	// Adopt lets the installer take over the queue tables of NServiceBus endpoints: it adds columns
	// and indexes to them, without blocking senders. Only a table with exactly the columns of
	// NServiceBus is taken over. Shared queues, such as the error queue, are used as they are. The
	// installer also rewrites tables of earlier versions, whose ids are text; stop programs of
	// these versions first. NServiceBus must no longer receive from a table that was taken over.
	// With Pooled, ListenURL must be set.
	Adopt bool
}

// System returns "postgresql".
func (*Transport) System() string { return "postgresql" }

// Open implements [transport.Transport]. It connects once, to fail early.
func (p *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	s, err := p.store(ctx, env)
	if err != nil {
		return nil, err
	}
	cfg := tablequeue.Config{Lease: p.Lease, LeasedInserts: true, Env: env}
	return tablequeue.Open(s.parts(), cfg), nil
}

func (p *Transport) store(ctx context.Context, env transport.Env) (*store, error) {
	set, err := p.settings(env)
	if err != nil {
		return nil, err
	}
	cfg, err := p.config()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	var listening *pgxpool.Config
	switch {
	case p.ListenURL != "":
		if listening, err = parse(p.ListenURL); err != nil {
			return nil, fmt.Errorf("postgres: ListenURL: %w", err)
		}
	case !p.Pooled:
		listening = cfg.Copy()
	}
	return openStore(ctx, cfg, listening, set)
}

func (p *Transport) config() (*pgxpool.Config, error) {
	switch {
	case p.Pool != nil && p.URL != "":
		return nil, errors.New("both URL and Pool are set: set one of them")
	case p.Pool != nil:
		cfg := p.Pool.Config()
		if cfg.MaxConns < minPool {
			return nil, fmt.Errorf("the pool has MaxConns %d: want at least %d", cfg.MaxConns, minPool)
		}
		return cfg, nil
	case p.URL == "":
		return nil, errors.New("URL is empty: set Transport.URL, or Transport.Pool")
	}
	return parse(p.URL)
}

func (p *Transport) settings(env transport.Env) (settings, error) {
	own := dialect.Settings{Schema: p.Schema, MaxTx: p.MaxTx, Endpoint: env.Endpoint, Routing: p.SubscriptionRouting}
	own, err := own.Complete("postgres", p.Lease, "public", checkName)
	set := settings{
		Settings: own, address: address{p.Pool, p.URL, p.ListenURL, p.Pooled}, adopts: p.Adopt, log: env.Log(), shared: env.Shared,
	}
	if p.Pool != nil {
		set.shared = &pools
	}
	return set, err
}

// sessionSettings are the settings of the server that a URL may have as options, beside the options
// of pgx.
var sessionSettings = []string{
	"application_name", "client_encoding", "default_transaction_isolation", "idle_in_transaction_session_timeout",
	"lock_timeout", "options", "search_path", "statement_timeout", "timezone",
}

// ParseURL returns the transport of a URL such as
// postgres://user:password@host:5432/database?schema=app. The options schema, lease, max_tx, pooled
// and subscription_routing set the fields of those names. Further options are those of pgx, such as
// sslmode and pool_max_conns, and some settings of the server, such as statement_timeout; an
// unknown one is an error that names it. No error repeats the URL, which may hold a password.
func ParseURL(raw string) (*Transport, error) {
	t := &Transport{}
	own := dialect.Options{
		"schema": &t.Schema, "lease": &t.Lease, "max_tx": &t.MaxTx, "pooled": &t.Pooled,
		"subscription_routing": &t.SubscriptionRouting,
	}
	var err error
	if t.URL, err = own.ParseURL(raw, "postgres", "postgresql"); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	cfg, err := parse(t.URL)
	if err == nil {
		err = own.Check(maps.Keys(cfg.ConnConfig.RuntimeParams), sessionSettings, "those of pgx")
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return t, nil
}

var errURL = errors.New("URL cannot be parsed (it is not shown, it may hold a password): " +
	"want postgres://user:password@host:5432/database, with special characters in the password percent-encoded")

func parse(url string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil || strings.LastIndexByte(cfg.ConnConfig.Host, '@') > 0 {
		return nil, errURL // err, or that host, may quote parts of the password
	}
	setDefault(cfg.ConnConfig.RuntimeParams, "client_encoding", "UTF8") // a role may have another
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	return cfg, nil
}

// connectTimeout limits an attempt to connect to a server that does not answer, if connect_timeout
// of the URL does not.
const connectTimeout = 5 * time.Second
