package sqlserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var (
	_ tablequeue.Store      = (*store)(nil)
	_ tablequeue.Transactor = (*store)(nil)
	_ tablequeue.Waker      = (*store)(nil)
	_ tablequeue.Namer      = (*store)(nil)
	_ tablequeue.Sweeper    = (*store)(nil)
	_ tablequeue.Orphaner   = (*store)(nil)
)

// poolSize is how many connections claim, and how many write.
const poolSize = 2

// store is the PostgreSQL dialect of the lease engine.
type store struct {
	database  string
	snapshots bool // sessions begin transactions above READ COMMITTED
	settings
	self     string          // what its own notifications begin with
	leases   *pgxpool.Pool   // what may be forgotten when the server crashes: claims, renewals, notifications
	writes   *pgxpool.Pool   // what may not
	handlers *pgxpool.Pool   // handlers' transactions
	listener *pgx.ConnConfig // nil where that is not possible

	tables     sync.Map // *table by queue
	statements sync.Map // text of composed statements by their shape

	sockets sockets

	mu   sync.Mutex // guards open
	open map[*handlerTx]struct{}
}

type settings struct {
	schema   string
	maxTx    int
	endpoint string // shown in pg_stat_activity
	routing  string // table of subscriptions of NServiceBus's shape; "" is ours
	pooled   bool   // a proxy gives each transaction another session
}

func openStore(ctx context.Context, cfg *pgxpool.Config, listener *pgx.ConnConfig, set settings) (*store, error) {
	s := &store{
		settings: set,
		self:     fmt.Sprintf("%016x", rand.Uint64()),
		listener: listener,
		open:     map[*handlerTx]struct{}{},
	}
	cfg = cfg.Copy()
	if s.pooled {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	cfg.ConnConfig.DialFunc = s.sockets.dial(cfg.ConnConfig.DialFunc)
	name := "holdfast " + set.endpoint
	if listener != nil {
		listener.DialFunc = cfg.ConnConfig.DialFunc
		setDefault(listener.RuntimeParams, "application_name", name)
	}
	for _, pool := range []struct {
		p   **pgxpool.Pool
		cfg *pgxpool.Config
	}{
		{&s.leases, s.leasesConfig(cfg, name)},
		{&s.writes, s.engineConfig(cfg, name)},
		{&s.handlers, handlersConfig(cfg, set.maxTx, name)},
	} {
		var err error
		if *pool.p, err = pgxpool.NewWithConfig(ctx, pool.cfg); err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("postgres: %w", err)
		}
	}
	if err := s.connect(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("postgres: connect: %w", err)
	}
	return s, nil
}

// connect asks in one round trip whether there is a server, and which database it has given us:
// behind a proxy its name may be another than that in the URL. The level is what handlers' transactions begin with.
func (s *store) connect(ctx context.Context) error {
	var level string
	err := s.writes.QueryRow(ctx, databaseName+", current_setting('default_transaction_isolation')", pgx.QueryExecModeSimpleProtocol).
		Scan(&s.database, &level)
	if s.snapshots = keepsSnapshot(level); s.snapshots && !s.pooled {
		s.writes.Reset() // to begin as all later ones do
	}
	return err
}

func (s *store) engineConfig(cfg *pgxpool.Config, name string) *pgxpool.Config {
	c := cfg.Copy()
	c.MaxConns, c.MinConns, c.MinIdleConns = poolSize, 0, 0
	c.ShouldPing = idleLong
	c.AfterConnect = s.prepare
	p := c.ConnConfig.RuntimeParams
	setDefault(p, "application_name", name)
	if s.pooled {
		return c
	}
	for _, off := range planner {
		p[off] = "off"
	}
	p["plan_cache_mode"] = "force_generic_plan"
	return c
}

// prepare makes a connection one of the engine's, whose statements do not conflict where sessions begin at another level.
func (s *store) prepare(ctx context.Context, conn *pgx.Conn) error {
	if s.pooled {
		return nil
	}
	useArrays(conn.TypeMap())
	if !s.snapshots {
		return nil
	}
	_, err := conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'`)
	return err
}

// leasesConfig does not wait for the disk: a claim that the server forgets when it
// crashes is one whose rows are handed out again, and whose settling fails.
func (s *store) leasesConfig(cfg *pgxpool.Config, name string) *pgxpool.Config {
	c := s.engineConfig(cfg, name)
	if s.pooled {
		return c
	}
	c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	return c
}

func handlersConfig(cfg *pgxpool.Config, maxTx int, name string) *pgxpool.Config {
	c := cfg.Copy()
	c.MaxConns, c.MinConns, c.MinIdleConns = int32(maxTx), 0, 0
	c.ShouldPing = idleLong
	setDefault(c.ConnConfig.RuntimeParams, "application_name", name+" handlers")
	return c
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

// goodbye is how long connections may take to end on their own.
const goodbye = time.Second

// Close implements [tablequeue.Store]. A server that does not answer is not waited for.
func (s *store) Close() error {
	s.mu.Lock()
	txs := s.open
	s.open = nil
	s.mu.Unlock()
	for tx := range txs {
		tx.abort()
	}
	defer time.AfterFunc(goodbye, s.sockets.cut).Stop()
	for _, pool := range []*pgxpool.Pool{s.leases, s.writes, s.handlers} {
		if pool != nil {
			pool.Close()
		}
	}
	return nil
}
