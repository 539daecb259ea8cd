package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var (
	_ tablequeue.Store    = (*store)(nil)
	_ tablequeue.Waker    = (*store)(nil)
	_ tablequeue.Sweeper  = (*store)(nil)
	_ tablequeue.Orphaner = (*store)(nil)
	_ tablequeue.Examiner = (*store)(nil)
	_ tablequeue.Warner   = (*store)(nil)
	_ tablequeue.Locks    = (*store)(nil)
	_ tablequeue.Foreign  = (*store)(nil)

	_ tablequeue.DelayedTables = (*store)(nil)
)

// store is the PostgreSQL dialect of the lease engine.
type store struct {
	settings
	*connections
	release  func() error  // returns the connections
	self     string        // the prefix of its own notifications
	handlers *pgxpool.Pool // for transactions of handlers
	txs      slots         // MaxTx of them, where handlers is the caller's pool; else nil
	sockets  sockets       // of handlers
	standby  standby       // what their sessions say about the server
	told     told          // what handlers have left in them

	recordStatements *recordStatements

	tables     dialect.Memo[*table] // by queue
	statements dialect.Memo[string] // text of composed statements by their shape
	commits    commits              // of callers' transactions
	detector   dialect.Detector     // of foreign tables
	clock      dialect.Clock        // of the server

	routingAsked atomic.Bool

	mu   sync.Mutex // guards open
	open map[*handlerTx]struct{}
}

type settings struct {
	dialect.Settings
	address address
	adopts  bool // the installer takes over tables of NServiceBus
	log     *slog.Logger
	shared  *transport.Shared // has the connections except those of handlers; nil: they are not shared
}

// openStore connects, or shares the connections of other stores with the same address.
func openStore(ctx context.Context, cfg, listening *pgxpool.Config, set settings) (*store, error) {
	s := &store{settings: set, self: fmt.Sprintf("%016x", rand.Uint64()), open: map[*handlerTx]struct{}{}}
	s.clock.Log = set.log
	s.clock.Restore, s.clock.MaxRestored = restorer(s), maxRestored
	s.recordStatements = newRecordStatements(s.records())
	s.detector = dialect.Detector{Suspect: refusedByForeign, Detect: s.detectForeign, Foreign: s.Foreign}
	if ctx.Err() != nil { // which shared connections would not notice
		return nil, fmt.Errorf("postgres: connect: %w", context.Cause(ctx))
	}
	cfg = cfg.Copy()
	if set.address.pooled {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	name := "holdfast " + set.Endpoint
	common := name
	if set.shared != nil {
		common = "holdfast shared"
	}
	var err error
	s.connections, s.release, err = transport.Share(set.shared, set.address, func() (*connections, error) {
		return openConnections(ctx, cfg, listening, set, common)
	})
	if err != nil {
		return nil, err
	}
	if s.callers != nil {
		s.handlers, s.txs = s.callers, make(slots, s.MaxTx)
		return s, nil
	}
	own := poolConfig(cfg, name+" handlers", s.MaxTx)
	own.ConnConfig.DialFunc = s.sockets.dial(own.ConnConfig.DialFunc)
	if s.handlers, err = pgxpool.NewWithConfig(ctx, own); err != nil {
		return nil, errors.Join(fmt.Errorf("postgres: %w", err), s.release())
	}
	return s, nil
}

// Close implements [tablequeue.Store]. It does not wait for a server that does not answer.
func (s *store) Close() error {
	s.mu.Lock()
	txs := s.open
	s.open = nil
	s.mu.Unlock()
	for tx := range txs {
		if conn := tx.take(); conn != nil { // which the handler may be using
			_ = conn.Hijack().PgConn().Conn().Close()
			s.freeSlot()
		}
	}
	s.commits.close()
	defer time.AfterFunc(goodbye, s.sockets.cut).Stop()
	if s.callers == nil {
		s.handlers.Close()
	}
	return s.release()
}
