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
)

// engineConns is how many connections the engine's own statements use: two that
// claim and two that write.
const engineConns = 4

// store is the PostgreSQL dialect of the lease engine.
type store struct {
	schema   string
	channel  string // of notifications
	self     string // what its own notifications begin with
	engine   *pgxpool.Pool
	handlers *pgxpool.Pool // for handlers' transactions
	listener *pgx.ConnConfig

	tables     sync.Map // *table by queue
	statements sync.Map // text of composed statements by their shape

	mu   sync.Mutex // guards open
	open map[*handlerTx]struct{}
}

type settings struct {
	schema string
	maxTx  int
	name   string // shown in pg_stat_activity
}

func openStore(ctx context.Context, cfg *pgxpool.Config, set settings) (*store, error) {
	s := &store{
		schema:   set.schema,
		channel:  "holdfast." + set.schema,
		self:     fmt.Sprintf("%016x", rand.Uint64()),
		listener: cfg.ConnConfig.Copy(),
		open:     map[*handlerTx]struct{}{},
	}
	if len(s.channel) > maxName {
		s.channel = s.channel[:maxName] // may wake another schema's receivers: no harm
	}
	name := "holdfast " + set.name
	setDefault(s.listener.RuntimeParams, "application_name", name)
	var err error
	if s.engine, err = pgxpool.NewWithConfig(ctx, engineConfig(cfg, name)); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if s.handlers, err = pgxpool.NewWithConfig(ctx, handlersConfig(cfg, set.maxTx, name)); err != nil {
		s.engine.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := s.engine.Ping(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("postgres: connect: %w", err)
	}
	return s, nil
}

// engineConfig makes the planner use the indexes whatever the statistics say: a
// queue that was empty when its plan was made may hold a million rows the next moment.
func engineConfig(cfg *pgxpool.Config, name string) *pgxpool.Config {
	c := cfg.Copy()
	c.MaxConns, c.MinConns, c.MinIdleConns = engineConns, 0, 0
	c.ShouldPing = idleLong
	p := c.ConnConfig.RuntimeParams
	setDefault(p, "application_name", name)
	for _, off := range []string{"enable_seqscan", "enable_bitmapscan", "enable_mergejoin", "jit"} {
		p[off] = "off"
	}
	p["plan_cache_mode"] = "force_generic_plan"
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

// Close implements [tablequeue.Store].
func (s *store) Close() error {
	s.mu.Lock()
	txs := s.open
	s.open = nil
	s.mu.Unlock()
	for tx := range txs {
		tx.abort()
	}
	s.engine.Close()
	s.handlers.Close()
	return nil
}
