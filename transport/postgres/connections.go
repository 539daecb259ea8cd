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
	// ownPool is how many connections an endpoint has that shares them with no other, for each purpose, and sharedPool
	// how many those have that share them.
	ownPool    = 2
	sharedPool = 8
	// ownRenewals and sharedRenewals are those for renewals, which wait for no claim and no handler.
	ownRenewals    = 1
	sharedRenewals = 4
	// claimLockWait is how long a claim waits for a table that is locked as a whole, in milliseconds. Rows that are locked
	// it skips. It holds one of few connections meanwhile.
	claimLockWait = "1000"
)

// address says which connections are the same.
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

// connections are the engine's connections to a server. The endpoints that one RunAll runs on one address share them. The
// transactions of handlers have others.
type connections struct {
	pooled    bool // a proxy gives each transaction another session
	database  string
	snapshots bool          // sessions begin transactions above READ COMMITTED
	leases    *pgxpool.Pool // for claims and notifications, which may be forgotten when the server crashes
	renewals  *pgxpool.Pool // may be forgotten, too
	writes    *pgxpool.Pool // may not
	listener  *listener     // nil where that is not possible
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

// connect asks in one round trip whether there is a server, and which database it has given us:
// behind a proxy its name may be another than that in the URL. The level is what handlers' transactions begin with.
func (c *connections) connect(ctx context.Context) error {
	var level string
	err := c.writes.QueryRow(ctx, databaseName+", current_setting('default_transaction_isolation')", pgx.QueryExecModeSimpleProtocol).
		Scan(&c.database, &level)
	if c.snapshots = keepsSnapshot(level); c.snapshots && !c.pooled {
		c.writes.Reset() // to begin as all later ones do
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

// prepare makes a connection one of the engine's, whose statements do not conflict where sessions begin at another level.
func (c *connections) prepare(ctx context.Context, conn *pgx.Conn) error {
	useArrays(conn.TypeMap())
	if !c.snapshots {
		return nil
	}
	_, err := conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'`)
	return err
}

// lazyConfig does not wait for the disk: a claim that the server forgets when it
// crashes is one whose rows are delivered again, and whose settling fails.
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

// writesConfig waits for locks for a short time only: a batch holds what many have sent, to tables of which one may be
// locked.
func (c *connections) writesConfig(cfg *pgxpool.Config, name string, most int) *pgxpool.Config {
	own := c.engineConfig(cfg, name, most)
	if !c.pooled {
		own.ConnConfig.RuntimeParams["lock_timeout"] = dialect.LockWait
	}
	return own
}

// idleLong says that a connection is to be tried before use. An idle endpoint looks
// every second, and that alone shall not be two requests.
func idleLong(_ context.Context, p pgxpool.ShouldPingParams) bool {
	return p.IdleDuration > 5*time.Second
}

func setDefault(params map[string]string, name, value string) {
	if params[name] == "" {
		params[name] = value
	}
}

// reset gives up all connections. Those in use end when they are returned.
func (c *connections) reset() {
	for _, pool := range []*pgxpool.Pool{c.leases, c.renewals, c.writes} {
		pool.Reset()
	}
}

// goodbye is how long connections may take to end on their own.
const goodbye = time.Second

// Close ends all connections. A server that does not answer is not waited for.
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
