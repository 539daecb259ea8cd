package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Transport = (*Transport)(nil)

// MaxBody is the largest body of a message in bytes. A larger one is refused with
// [*transport.TooLargeError].
const MaxBody = dialect.MaxBody

// Transport is the transport on PostgreSQL. It may be copied before use and opened
// several times.
type Transport struct {
	// URL says where the database is, as a URL or as "key=value" pairs. Required. What it leaves out
	// comes from the PG* environment variables.
	URL string
	// Schema holds the queue tables. Empty: public. Endpoints that send to each
	// other share it.
	Schema string
	// Lease is how long a received message stays with this process unless it is
	// renewed, and so how long one waits that a crashed process held. 0: 30 s.
	Lease time.Duration
	// MaxTx is how many transactions of handlers may be open at once; further handlers
	// wait for one. Each has a connection. 0: 32.
	MaxTx int
	// Pooled says that URL leads to a proxy that pools transactions, such as pgbouncer with
	// pool_mode transaction: nothing is then kept in a session, and no statement is prepared.
	Pooled bool
	// ListenURL is where to listen for notifications: with Pooled, past the proxy. Empty: URL, but
	// with Pooled nowhere, and idle receivers look every 500 ms.
	ListenURL string
	// SubscriptionRouting is a table of subscriptions in Schema that is shared with endpoints of
	// NServiceBus, which call theirs SubscriptionRouting. Empty: a table of our own.
	SubscriptionRouting string
}

// Open implements [transport.Transport]. It connects once, to fail early.
func (p *Transport) Open(ctx context.Context, env transport.Env) (transport.Conn, error) {
	s, err := p.store(ctx, env)
	if err != nil {
		return nil, err
	}
	return tablequeue.Open(s, tablequeue.Config{Lease: p.Lease, MaxBody: MaxBody, Env: env}), nil
}

func (p *Transport) store(ctx context.Context, env transport.Env) (*store, error) {
	if p.URL == "" {
		return nil, errors.New("postgres: URL is empty: set Transport.URL")
	}
	set, err := p.settings(env)
	if err != nil {
		return nil, err
	}
	cfg, err := parse(p.URL)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	var listener *pgx.ConnConfig
	switch {
	case p.ListenURL != "":
		at, err := parse(p.ListenURL)
		if err != nil {
			return nil, fmt.Errorf("postgres: ListenURL: %w", err)
		}
		listener = at.ConnConfig
	case !p.Pooled:
		listener = cfg.ConnConfig.Copy()
	}
	return openStore(ctx, cfg, listener, set)
}

func (p *Transport) settings(env transport.Env) (settings, error) {
	own := dialect.Settings{Schema: p.Schema, MaxTx: p.MaxTx, Endpoint: env.Endpoint, Routing: p.SubscriptionRouting}
	own, err := own.Complete("postgres", p.Lease, "public", checkName)
	return settings{Settings: own, address: address{p.URL, p.ListenURL, p.Pooled}, shared: env.Shared}, err
}
