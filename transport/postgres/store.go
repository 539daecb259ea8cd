package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// store is the PostgreSQL dialect of the lease engine. Its parts share the database.
type store struct {
	*db
	*claimer
	*writer
	*notifier
	*joiner
	*transactions
	*inspector
	*installer
	*browser
	*inboxStore
	*recordStore
	*handingOver

	subscriptions *subscriptions
	release       func() error // returns the connections
}

// settings are the settings of a store.
type settings struct {
	dialect.Settings
	address address
	adopts  bool // the installer takes over tables of NServiceBus
	log     *slog.Logger
	// shared has the connections except those of handlers; nil: they are not shared.
	shared *transport.Shared
}

// newStore returns a store without connections, which can only compose statements.
func newStore(set settings) *store {
	d := &db{
		schema:  &schema{Settings: set.Settings, adopts: set.adopts},
		address: set.address, log: set.log,
	}
	s := &store{
		db:            d,
		claimer:       &claimer{db: d},
		writer:        &writer{db: d},
		notifier:      &notifier{db: d, self: fmt.Sprintf("%016x", rand.Uint64())},
		inspector:     &inspector{db: d},
		subscriptions: &subscriptions{d},
		inboxStore:    &inboxStore{d},
		handingOver:   &handingOver{d},
	}
	s.clock.Log, s.clock.Restore, s.clock.MaxRestored = set.log, s.restore, maxRestored
	s.detector = dialect.Detector{
		Suspect: refusedByForeign, Detect: s.detectForeign, Foreign: d.Foreign,
	}
	s.joiner = &joiner{db: d, writer: s.writer, notifier: s.notifier}
	s.browser = &browser{db: d, writer: s.writer}
	s.installer = &installer{db: d, ddl: ddl{d.schema}, inboxes: s.inboxStore}
	s.recordStore = &recordStore{
		db: d, inboxes: s.inboxStore, statements: newRecordStatements(d.recordTable()),
	}
	s.transactions = &transactions{
		db: d, writer: s.writer, records: s.recordStore, inspector: s.inspector,
		open: map[*handlerTx]struct{}{},
	}
	return s
}

// parts returns s for the engine. PostgreSQL has all parts of a Store.
func (s *store) parts() tablequeue.Store {
	return tablequeue.Store{
		Queues:        s,
		Browsing:      s.browser,
		Topology:      s,
		Subscriptions: s.subscriptions,
		Transactions:  s.transactions,
		Inboxes:       s.inboxStore,
		Classify:      s.Classify,
		Close:         s.Close,

		Addresser:     s.schema,
		Timed:         s.db,
		Waker:         s.notifier,
		Sweeper:       s.inspector,
		Orphaner:      s.claimer,
		Hastener:      s.claimer,
		Locks:         s,
		FaultFinder:   s.writer,
		Outages:       s.db,
		Examiner:      s.inspector,
		Warner:        s.inspector,
		Records:       s.recordStore,
		Foreign:       s.schema,
		DelayedTables: s.handingOver,
		HandingOver:   s.handingOver,
	}
}

// openStore connects, or shares the connections of other stores with the same address.
func openStore(ctx context.Context, cfg, listening *pgxpool.Config, set settings) (*store, error) {
	s := newStore(set)
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
	if err := s.openPool(ctx, cfg, name); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// Close closes the store, for [tablequeue.Store]. It does not wait for a server that does not
// answer.
func (s *store) Close() error {
	s.abort()
	s.commits.close()
	s.closePool()
	return s.release()
}
