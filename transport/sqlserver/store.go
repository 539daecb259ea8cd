package sqlserver

import (
	"context"
	"errors"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// store is the SQL Server dialect of the lease engine. Its parts share the database.
type store struct {
	*db
	*claimer
	*writer
	*joiner
	*transactions
	*inspector
	*installer
	*subscriptions
	*browser
	*inboxStore
	*recordStore
	*handingOver
}

func newStore(c connector, set dialect.Settings) *store {
	d := &db{
		schema: &schema{Settings: set}, log: slog.New(slog.DiscardHandler), engine: openDB(c, poolSize),
	}
	d.detector = dialect.Detector{Suspect: refusedByTrait, Detect: d.detectTraits, Foreign: d.Foreign}
	s := &store{
		db:            d,
		claimer:       &claimer{db: d},
		writer:        &writer{d},
		inspector:     &inspector{d},
		installer:     &installer{db: d, ddl: ddl{d.schema}},
		subscriptions: &subscriptions{d},
		inboxStore:    &inboxStore{d},
		recordStore:   &recordStore{d},
	}
	s.clock.Log, s.clock.Restore, s.clock.MaxRestored = s.log, s.restore, tablequeue.MaxSwept
	s.joiner = &joiner{db: d, writer: s.writer}
	s.browser = &browser{db: d, writer: s.writer}
	s.handingOver = &handingOver{db: d, installer: s.installer}
	s.transactions = &transactions{writer: s.writer, handlers: openDB(c, set.MaxTx)}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// parts returns s for the engine. SQL Server has no Waker: receivers poll.
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
		Timed:         s.inspector,
		Sweeper:       s.inspector,
		Orphaner:      s.claimer,
		Hastener:      s.claimer,
		Locks:         s,
		Outages:       s.db,
		Examiner:      s.inspector,
		Records:       s.recordStore,
		Foreign:       s.schema,
		DelayedTables: s.handingOver,
		HandingOver:   s.handingOver,
	}
}

// Close closes the store, for [tablequeue.Store].
func (s *store) Close() error {
	s.end()
	return errors.Join(s.handlers.Close(), s.engine.Close())
}
