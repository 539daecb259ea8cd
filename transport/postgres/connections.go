package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
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
	// pooled reports whether sessions keep no settings and no statements: a proxy may switch them,
	// or they are the caller's.
	pooled    bool
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
	own.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > 5*time.Second
	}
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

// greeting is what the server says about the database and the session of a new connection. Its
// statements name the schema of each function: a search_path may put functions of others before
// those of the server.
type greeting struct {
	at       database
	level    string // the isolation level at which transactions begin
	encoding string
	path     string // the schemas in which names are looked for, as the text of an array
	role     string
	most     int // the connections that the role may have; -1: not limited
}

const askGreeting = `SELECT pg_catalog.current_database(), ` + askStarted + `, pg_catalog.current_setting('default_transaction_isolation'),
	pg_catalog.current_setting('server_encoding'), pg_catalog.current_schemas(true)::pg_catalog.text, current_user::pg_catalog.text,
	coalesce((SELECT CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) current_user), -1)`

// askShadows finds a function or an operator that the search_path puts before one of the server's
// with the same parameters. Members of extensions do not count: pgcrypto has a gen_random_uuid that
// does the same, and orafce is used with such a search_path.
const askShadows = `WITH before AS (
	SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace AS n
	WHERE pg_catalog.left(n.nspname::pg_catalog.text, 7) OPERATOR(pg_catalog.<>) 'pg_temp' AND pg_catalog.array_position(pg_catalog.current_schemas(true), n.nspname)
		OPERATOR(pg_catalog.<) pg_catalog.array_position(pg_catalog.current_schemas(true), 'pg_catalog'::pg_catalog.name)
), named AS (
	SELECT 'function' AS kind, 'pg_catalog.pg_proc'::pg_catalog.regclass AS class, oid, pronamespace AS home, proname AS name,
		proargtypes::pg_catalog.text AS types FROM pg_catalog.pg_proc
	UNION ALL SELECT 'operator', 'pg_catalog.pg_operator'::pg_catalog.regclass, oid, oprnamespace, oprname, pg_catalog.concat(oprleft, ' ', oprright) FROM pg_catalog.pg_operator
)
SELECT pg_catalog.concat(theirs.kind, ' ', before.nspname, '.', theirs.name) FROM before
JOIN named AS theirs ON theirs.home OPERATOR(pg_catalog.=) before.oid
JOIN named AS own ON own.home OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace AND own.kind OPERATOR(pg_catalog.=) theirs.kind
	AND own.name OPERATOR(pg_catalog.=) theirs.name AND own.types OPERATOR(pg_catalog.=) theirs.types
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid OPERATOR(pg_catalog.=) theirs.class
	AND d.objid OPERATOR(pg_catalog.=) theirs.oid AND d.deptype OPERATOR(pg_catalog.=) 'e')
ORDER BY 1 LIMIT 1`

// leastConnections is the number of connections with which an endpoint receives: for claims,
// renewals, writes, notifications and one handler's transaction.
const leastConnections = 5

// greet asks for the greeting, in one round trip, and refuses a database or a session that cannot
// be used.
func (c *connections) greet(ctx context.Context, log *slog.Logger) (g greeting, err error) {
	err = c.writes.QueryRow(ctx, askGreeting, pgx.QueryExecModeSimpleProtocol).
		Scan(&g.at.name, &g.at.started, &g.level, &g.encoding, &g.path, &g.role, &g.most)
	if err != nil {
		return g, err
	}
	if g.encoding != "UTF8" {
		return g, fmt.Errorf("database %q has the encoding %s, which cannot store every message: want UTF8, "+
			"as by CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", g.at.name, g.encoding)
	}
	if g.most >= 0 && g.most < leastConnections {
		log.WarnContext(ctx, "the role may have fewer connections than an endpoint that receives needs: raise its CONNECTION LIMIT",
			slog.String("role", g.role), slog.Int("limit", g.most), slog.Int("least", leastConnections))
	}
	if !strings.HasPrefix(g.path, "{pg_catalog") {
		if err := c.unshadowed(ctx); err != nil {
			return g, err
		}
	}
	if c.pooled {
		err = c.transacts(ctx)
	}
	return g, err
}

// unshadowed fails if the search_path replaces a function or an operator of the server.
func (c *connections) unshadowed(ctx context.Context) error {
	rows, err := c.writes.Query(ctx, askShadows, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return err
	}
	shadows, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(shadows) > 0 {
		err = fmt.Errorf("the search_path of the session replaces functions of the server, such as by the %s: "+
			"put pg_catalog first, or leave it out", shadows[0])
	}
	return err
}

// transacts fails behind a proxy that pools statements, which refuses transactions.
func (c *connections) transacts(ctx context.Context) error {
	tx, err := c.writes.Begin(ctx)
	if err == nil {
		err = tx.Rollback(ctx)
	}
	if err != nil && strings.Contains(err.Error(), "statement pooling") {
		return fmt.Errorf("the proxy pools statements, and messages need transactions: set pool_mode = transaction in pgbouncer (%w)", err)
	}
	return err
}
