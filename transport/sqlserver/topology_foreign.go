package sqlserver

import (
	"context"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Numbers by which the server refuses a statement because of its table.
const (
	invalidColumn = 207 // one of NServiceBus's
	hasTriggers   = 334 // OUTPUT without INTO
)

// repeat calls do, which uses the table of queue: again while it fails because of a trait that was not known.
func (s *store) repeat(ctx context.Context, queue string, do func() error) error {
	return s.detector.Repeat(ctx, []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: queue}}, do)
}

func refusedByTrait(err error) bool {
	return slices.Contains([]int32{hasTriggers, invalidColumn}, numberOf(err))
}

func (s *store) foreign(queue string) bool { return s.table(queue).traits.foreign }

// detectTraits reports whether a queue's table has traits that were not known. The server names a table with triggers in
// words only, so that all queues are taken to have them.
func (s *store) detectTraits(ctx context.Context, queue string, err error) bool {
	was := s.table(queue).traits
	traits := was
	if numberOf(err) == hasTriggers {
		traits.triggers = true
	} else if columns, err := s.columns(ctx, queue); err == nil {
		traits.foreign = len(columns) > 0 && !slices.Contains(columns, "lease_id")
		traits.recoverable = traits.foreign && slices.Contains(columns, "Recoverable")
	}
	if traits == was {
		return false
	}
	s.tables.Set(queue, newTable(s.Schema, s.place(queue), traits))
	return true
}

// columns returns the columns of a queue's table, and none where there is no table.
func (s *store) columns(ctx context.Context, queue string) (names []string, err error) {
	err = each(ctx, s.db, values(&names), s.table(queue).columns)
	return names, err
}
