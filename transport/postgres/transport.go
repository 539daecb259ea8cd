package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// MaxBody is the largest body of a message in bytes. A larger one is refused with a [*transport.TooLargeError].
const MaxBody = tablequeue.MaxBody

// Transport is the transport on PostgreSQL. It may be copied before use, and opened several times, also at once.
type Transport struct {
	// URL says where the database is, as a URL or as "key=value" pairs. What it leaves out comes from the PG* environment
	// variables. Required unless Pool is set.
	URL string
	// Pool is used instead of connections to URL. The caller owns it: it is open for as long as an endpoint uses it, and
	// closed by the caller afterwards. The driver takes at most Pool's MaxConns less two for transactions of handlers, so
	// MaxConns is at least 3. It adds connections of its own, made from Pool's configuration with its BeforeConnect and
	// its tracer: one that listens, and up to two that renew leases, for which neither a handler nor the caller leaves
	// no connection.
	Pool *pgxpool.Pool
	// Schema has the queue tables. Endpoints that send to each other share it. Empty: public.
	Schema string
	// Lease is the time for which a received message is invisible to others unless it is renewed, and so the time until
	// the messages of a crashed process are delivered again. 0: 30 s.
	Lease time.Duration
	// MaxTx is the largest number of open transactions of handlers. Further handlers wait. Each transaction has a
	// connection. 0: 32.
	MaxTx int
	// Pooled says that URL or Pool leads to a proxy that pools transactions, such as pgbouncer with pool_mode transaction.
	// The driver then keeps no settings in a session, and prepares no statements.
	Pooled bool
	// ListenURL is the server to listen on for notifications: with Pooled, the server behind the proxy. Empty: URL or
	// Pool, but with Pooled none, and idle receivers poll every 500 ms.
	ListenURL string
	// SubscriptionRouting is a table of subscriptions in Schema that is shared with endpoints of NServiceBus, whose
	// default name for it is SubscriptionRouting. Empty: a table of the driver's own.
	SubscriptionRouting string
}

// System returns "postgresql".
func (*Transport) System() string { return "postgresql" }

// Open implements [transport.Transport]. It connects once, to fail early.
func (p *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	s, err := p.store(ctx, env)
	if err != nil {
		return nil, err
	}
	return tablequeue.Open(s, tablequeue.Config{Lease: p.Lease, Env: env}), nil
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
	set := settings{Settings: own, address: address{p.Pool, p.URL, p.ListenURL, p.Pooled}, shared: env.Shared}
	if p.Pool != nil {
		set.shared = &pools
	}
	return set, err
}
