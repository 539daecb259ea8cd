package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/transport"
)

const (
	// ownPool is the size of each pool of an endpoint that shares it with no other, and sharedPool
	// that of shared pools.
	ownPool    = 2
	sharedPool = 8
	// ownRenewals and sharedRenewals are the sizes of the pool for renewals, which do not wait for
	// claims or handlers.
	ownRenewals    = 1
	sharedRenewals = 4
	// claimLockWait is the time in milliseconds that a claim waits for a table lock. It skips
	// locked rows. Meanwhile it holds one of few connections.
	claimLockWait = "1000"
)

// address identifies connections that stores can share.
type address struct {
	pool           *pgxpool.Pool // the caller's, or nil
	url, listenURL string
	pooled         bool
}

// pools are the connections on pools of callers, so that endpoints with the same pool leave each
// other connections.
var pools transport.Shared

const (
	// poolReserve is the number of a caller's connections that transactions of handlers leave free
	// for claims and writes.
	poolReserve = 2
	minPool     = poolReserve + 1
	// poolRenewals is the number of connections for renewals beside a caller's pool.
	poolRenewals = 2
)

// connections are the engine's connections to a server, except those for transactions of handlers.
// The endpoints that one RunAll runs on one address share them.
type connections struct {
	pooled    bool // sessions keep no settings and no statements: a proxy may switch them, or they are the caller's
	home      atomic.Pointer[database]
	snapshots bool      // sessions begin transactions above READ COMMITTED
	leases    pool      // for claims and notifications, which a crash of the server may undo
	renewals  pool      // which a crash of the server may undo
	writes    pool      // which are durable
	listener  *listener // nil where LISTEN is not possible
	sockets   sockets
	callers   *pgxpool.Pool // the caller's pool, which is leases and writes too; or nil
	slots     slots         // of callers, for transactions of handlers
}

// openConnections connects once, to fail early. name is shown in pg_stat_activity.
func openConnections(
	ctx context.Context, cfg, listening *pgxpool.Config, set settings, name string,
) (*connections, error) {
	c := &connections{pooled: set.address.pooled || set.address.pool != nil, callers: set.address.pool}
	cfg = cfg.Copy()
	cfg.ConnConfig.DialFunc = c.sockets.dial(cfg.ConnConfig.DialFunc)
	if listening != nil {
		listening.ConnConfig.DialFunc = cfg.ConnConfig.DialFunc
		setDefault(listening.ConnConfig.RuntimeParams, "application_name", name)
		c.listener = &listener{config: listening}
		c.listener.life, c.listener.end = context.WithCancel(context.Background())
	}
	if err := c.openPools(ctx, cfg, set, name); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := c.connect(ctx, set.log); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("postgres: connect: %w", err)
	}
	return c, nil
}

func (c *connections) openPools(
	ctx context.Context, cfg *pgxpool.Config, set settings, name string,
) (err error) {
	if c.callers != nil {
		c.leases, c.writes = pool{c.callers, claiming.statement()}, pool{c.callers, writing.statement()}
		c.slots = make(slots, cfg.MaxConns-poolReserve)
		c.renewals, err = c.open(ctx, cfg, name, poolRenewals, renewing)
		return err
	}
	most, renewals := ownPool, ownRenewals
	if set.shared != nil {
		most, renewals = sharedPool, sharedRenewals
	}
	if c.leases, err = c.open(ctx, cfg, name, most, claiming); err != nil {
		return err
	}
	if c.renewals, err = c.open(ctx, cfg, name, renewals, renewing); err != nil {
		return err
	}
	c.writes, err = c.open(ctx, cfg, name, most+1, writing) // one connection is for the engine's detour
	return err
}

// connect asks the server for its database, whose name a proxy may change, and for the isolation
// level at which transactions of handlers begin.
func (c *connections) connect(ctx context.Context, log *slog.Logger) error {
	g, err := c.greet(ctx, log)
	if err != nil {
		return err
	}
	c.home.Store(&g.at)
	if c.snapshots = keepsSnapshot(g.level); c.snapshots && !c.pooled {
		c.writes.Reset() // its connection has not been prepared for this level
	}
	return nil
}

// open opens a pool of connections with the settings of set.
func (c *connections) open(
	ctx context.Context, cfg *pgxpool.Config, name string, most int, set options,
) (p pool, err error) {
	own := poolConfig(cfg, name, most)
	if c.pooled {
		p.first = set.statement()
	} else {
		own.AfterConnect = c.prepare
		for _, setting := range set {
			own.ConnConfig.RuntimeParams[setting[0]] = setting[1]
		}
	}
	p.Pool, err = pgxpool.NewWithConfig(ctx, own)
	return p, err
}

// poolConfig returns the configuration of a pool. Its connections are pinged before use after some
// idle time only: an idle endpoint polls every second, which a ping would make two requests.
func poolConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := cfg.Copy()
	own.MaxConns, own.MinConns, own.MinIdleConns = int32(most), 0, 0 //nolint:gosec // a number of connections
	own.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > 5*time.Second }
	setDefault(own.ConnConfig.RuntimeParams, "application_name", name)
	return own
}

// prepare configures a new connection of the engine. Its statements run at READ COMMITTED, where
// they do not conflict.
func (c *connections) prepare(ctx context.Context, conn *pgx.Conn) error {
	useArrays(conn.TypeMap())
	if !c.snapshots {
		return nil
	}
	_, err := conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'`)
	return err
}

func setDefault(params map[string]string, name, value string) {
	if params[name] == "" {
		params[name] = value
	}
}

// goodbye is the time that connections have to end by themselves.
const goodbye = time.Second

// Close ends all connections. It does not wait for a server that does not answer.
func (c *connections) Close() error {
	defer time.AfterFunc(goodbye, c.sockets.cut).Stop()
	if c.listener != nil {
		c.listener.Close()
	}
	for _, p := range []pool{c.leases, c.renewals, c.writes} {
		if p.Pool != nil && p.Pool != c.callers {
			p.Close()
		}
	}
	return nil
}

// sockets are the network connections of a store. pgx waits when it closes one on which the server
// does not answer; cut does not.
type sockets struct {
	mu   sync.Mutex // guards the rest
	open map[*socket]struct{}
	over bool
}

// socket is a network connection that its sockets know until it is closed.
type socket struct {
	net.Conn
	of *sockets
}

// dial returns inner with a record of its connections.
func (s *sockets) dial(inner pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := inner(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over {
			_ = conn.Close()
			return nil, transport.ErrClosed
		}
		if s.open == nil {
			s.open = map[*socket]struct{}{}
		}
		c := &socket{conn, s}
		s.open[c] = struct{}{}
		return c, nil
	}
}

// cut closes all connections, and refuses new ones.
func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for c := range s.open {
		_ = c.Conn.Close()
	}
	s.open = nil
}

// Close implements [net.Conn].
func (c *socket) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
