package sqlserver

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// Numbers by which the server refuses a statement because of its table.
const (
	invalidColumn = 207 // one of NServiceBus's
	hasTriggers   = 334 // OUTPUT without INTO
)

// detecting writes units: again when the write has failed because of a trait that was not known.
func (s *store) detecting(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	return s.retryDetected(ctx, dialect.Queues(units), func() error {
		if err := s.delayable(units); err != nil {
			return err
		}
		return write()
	})
}

// retryDetected calls do, which uses the tables of queues: again while it fails because of a trait that was not known.
func (s *store) retryDetected(ctx context.Context, queues []string, do func() error) error {
	for {
		known := s.traits(queues)
		err := do()
		if err == nil || !s.detected(ctx, queues, known, err) {
			return err
		}
	}
}

// traits returns the known traits of the tables of queues.
func (s *store) traits(queues []string) []traits {
	known := make([]traits, len(queues))
	for i, q := range queues {
		known[i] = s.table(q).traits
	}
	return known
}

// delayable refuses delayed rows for foreign tables.
func (s *store) delayable(units []*tablequeue.Unit) error {
	err := dialect.CheckDelays(units, func(queue string) bool { return s.table(queue).traits.foreign })
	if err != nil {
		return fmt.Errorf("sqlserver: %w", err)
	}
	return nil
}

// detected reports whether err is of a trait that was not known when traits returned known. Another goroutine may
// have detected it meanwhile. The server names a table with triggers in words only, so that all queues are taken to
// have them.
func (s *store) detected(ctx context.Context, queues []string, known []traits, err error) bool {
	number, _ := numberOf(err)
	if number != hasTriggers && number != invalidColumn {
		return false
	}
	for _, q := range queues {
		was := s.table(q).traits
		traits := was
		if number == hasTriggers {
			traits.triggers = true
		} else if columns, err := s.columns(ctx, q); err == nil {
			traits.foreign = len(columns) > 0 && !slices.Contains(columns, "lease_id")
			traits.recoverable = traits.foreign && slices.Contains(columns, "Recoverable")
		}
		if traits != was {
			s.tables.Set(q, newTable(s.Schema, s.place(q), traits))
		}
	}
	return !slices.Equal(known, s.traits(queues))
}

// columns returns the columns of a queue's table, and none where there is no table.
func (s *store) columns(ctx context.Context, queue string) (names []string, err error) {
	err = each(ctx, s.db, texts(&names), s.table(queue).columns)
	return names, err
}
