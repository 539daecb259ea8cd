package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	// ownPool is the size of each pool of an endpoint that shares it with no other, and sharedPool that of shared pools.
	ownPool    = 2
	sharedPool = 8
	// ownRenewals and sharedRenewals are the sizes of the pool for renewals, which do not wait for claims or handlers.
	ownRenewals    = 1
	sharedRenewals = 4
	// claimLockWait is the time in milliseconds that a claim waits for a table lock. It skips locked rows. Meanwhile it
	// holds one of few connections.
	claimLockWait = "1000"
)

// address identifies connections that stores can share.
type address struct {
	pool           *pgxpool.Pool // the caller's, or nil
	url, listenURL string
	pooled         bool
}

// pools are the connections on pools of callers, so that endpoints with the same pool leave each other connections.
var pools transport.Shared

const (
	// poolReserve is the number of a caller's connections that transactions of handlers leave free for claims and writes.
	poolReserve = 2
	minPool     = poolReserve + 1
	// poolRenewals is the number of connections for renewals beside a caller's pool.
	poolRenewals = 2
)

// connections are the engine's connections to a server, except those for transactions of handlers. The endpoints that
// one RunAll runs on one address share them.
type connections struct {
	pooled    bool // sessions keep no settings and no statements: a proxy may switch them, or they are the caller's
	database  string
	snapshots bool          // sessions begin transactions above READ COMMITTED
	leases    *pgxpool.Pool // for claims and notifications, which a crash of the server may undo
	renewals  *pgxpool.Pool // which a crash of the server may undo
	writes    *pgxpool.Pool // which are durable
	listener  *listener     // nil where LISTEN is not possible
	sockets   sockets
	callers   *pgxpool.Pool // the caller's pool, which is leases and writes too; or nil
	slots     slots         // of callers, for transactions of handlers
}

// openConnections connects once, to fail early. name is shown in pg_stat_activity.
func openConnections(ctx context.Context, cfg, listening *pgxpool.Config, set settings, name string) (*connections, error) {
	c := &connections{pooled: set.address.pooled || set.address.pool != nil, callers: set.address.pool}
	cfg = cfg.Copy()
	if set.address.pooled {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	cfg.ConnConfig.DialFunc = c.sockets.dial(cfg.ConnConfig.DialFunc)
	if listening != nil {
		listening.ConnConfig.DialFunc = cfg.ConnConfig.DialFunc
		setDefault(listening.ConnConfig.RuntimeParams, "application_name", name)
		c.listener = newListener(listening)
	}
	if err := c.openPools(ctx, cfg, set, name); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := c.connect(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("postgres: connect: %w", err)
	}
	return c, nil
}

func (c *connections) openPools(ctx context.Context, cfg *pgxpool.Config, set settings, name string) (err error) {
	if c.callers != nil {
		c.leases, c.writes, c.slots = c.callers, c.callers, make(slots, cfg.MaxConns-poolReserve)
		c.renewals, err = pgxpool.NewWithConfig(ctx, c.lazyConfig(cfg, name, poolRenewals))
		return err
	}
	most, renewals := ownPool, ownRenewals
	if set.shared != nil {
		most, renewals = sharedPool, sharedRenewals
	}
	if c.leases, err = pgxpool.NewWithConfig(ctx, c.claimsConfig(cfg, name, most)); err != nil {
		return err
	}
	if c.renewals, err = pgxpool.NewWithConfig(ctx, c.lazyConfig(cfg, name, renewals)); err != nil {
		return err
	}
	c.writes, err = pgxpool.NewWithConfig(ctx, c.writesConfig(cfg, name, most))
	return err
}

// connect asks the server in one round trip for its database, whose name a proxy may change, and for the isolation
// level at which transactions of handlers begin.
func (c *connections) connect(ctx context.Context) error {
	var level string
	err := c.writes.QueryRow(ctx, databaseName+", current_setting('default_transaction_isolation')", pgx.QueryExecModeSimpleProtocol).
		Scan(&c.database, &level)
	if c.snapshots = keepsSnapshot(level); c.snapshots && !c.pooled {
		c.writes.Reset() // its connection has not been prepared for this level
	}
	return err
}

func (c *connections) engineConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := cfg.Copy()
	own.MaxConns, own.MinConns, own.MinIdleConns = int32(most), 0, 0 //nolint:gosec // a constant
	own.ShouldPing = idleLong
	if !c.pooled {
		own.AfterConnect = c.prepare
	}
	p := own.ConnConfig.RuntimeParams
	setDefault(p, "application_name", name)
	if c.pooled {
		return own
	}
	for _, off := range planner {
		p[off] = "off"
	}
	p["plan_cache_mode"] = "force_generic_plan"
	return own
}

// prepare configures a new connection of the engine. Its statements run at READ COMMITTED, where they do not conflict.
func (c *connections) prepare(ctx context.Context, conn *pgx.Conn) error {
	useArrays(conn.TypeMap())
	if !c.snapshots {
		return nil
	}
	_, err := conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'`)
	return err
}

// lazyConfig is for statements whose commit does not wait for the disk. When a crash of the server undoes a claim, its
// rows are delivered again, and settling the lost deliveries fails.
func (c *connections) lazyConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := c.engineConfig(cfg, name, most)
	if !c.pooled {
		own.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	}
	return own
}

func (c *connections) claimsConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := c.lazyConfig(cfg, name, most)
	if !c.pooled {
		own.ConnConfig.RuntimeParams["lock_timeout"] = claimLockWait
	}
	return own
}

// writesConfig bounds the wait for locks: a batch has messages of many senders for many tables, of which one may be
// locked.
func (c *connections) writesConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := c.engineConfig(cfg, name, most)
	if !c.pooled {
		own.ConnConfig.RuntimeParams["lock_timeout"] = dialect.LockWait
	}
	return own
}

// idleLong reports whether a connection is pinged before use. An idle endpoint polls every second, which a ping would
// make two requests.
func idleLong(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > 5*time.Second
}

func setDefault(params map[string]string, name, value string) {
	if params[name] == "" {
		params[name] = value
	}
}

// reset closes all connections: those in use when they are released.
func (c *connections) reset() {
	for _, pool := range []*pgxpool.Pool{c.leases, c.renewals, c.writes} {
		pool.Reset()
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
	for _, pool := range []*pgxpool.Pool{c.leases, c.renewals, c.writes} {
		if pool != nil && pool != c.callers {
			pool.Close()
		}
	}
	return nil
}
