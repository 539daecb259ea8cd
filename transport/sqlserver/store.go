package sqlserver

import (
	"context"
	"errors"
	"log/slog"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

var (
	_ tablequeue.Store    = (*store)(nil)
	_ tablequeue.Orphaner = (*store)(nil)
	_ tablequeue.Sweeper  = (*store)(nil)
	_ tablequeue.Locks    = (*store)(nil)
	_ tablequeue.Timed    = (*store)(nil)
	_ tablequeue.Foreign  = (*store)(nil)
	_ tablequeue.Outages  = (*store)(nil)
)

// store is the SQL Server dialect of the lease engine. Its parts share the database. It is no
// [tablequeue.Waker]: receivers poll.
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

// Close implements [tablequeue.Store].
func (s *store) Close() error {
	s.end()
	return errors.Join(s.handlers.Close(), s.engine.Close())
}
