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
	invalidColumn = 207 // one of another version, or one of NServiceBus's
	missingIndex  = 308 // of a hint
	hasTriggers   = 334 // OUTPUT without INTO
)

// repeat calls do, which uses the table of queue: again while it fails because of a trait that was
// not known.
func (s *store) repeat(ctx context.Context, queue string, do func() error) error {
	return s.detector.Repeat(ctx, []*tablequeue.Unit{{Verb: tablequeue.Delete, Queue: queue}}, do)
}

func refusedByTrait(err error) bool {
	return slices.Contains([]int32{hasTriggers, invalidColumn, missingIndex}, numberOf(err))
}

// Foreign implements [tablequeue.Foreign].
func (s *store) Foreign(queue string) bool { return s.table(queue).traits.foreign }

// detectTraits reports whether a queue's table has traits that were not known. The server names a
// table with triggers in words only, so that all queues are taken to have them.
func (s *store) detectTraits(ctx context.Context, queue string, err error) bool {
	traits := s.table(queue).traits
	if numberOf(err) == hasTriggers {
		traits.triggers = true
	} else if columns, err := s.columns(ctx, queue); err == nil {
		traits = traits.of(columns)
	}
	if traits == s.table(queue).traits {
		return false
	}
	s.tables.Set(queue, newTable(s.Schema, s.place(queue), traits))
	return true
}

// of returns the traits of a table with these columns. A table that does not exist has those of a
// new one.
func (t traits) of(columns []string) traits {
	ours := slices.Contains(columns, "lease_id")
	t.foreign = len(columns) > 0 && !ours
	t.recoverable = t.foreign && slices.Contains(columns, "Recoverable")
	t.first = ours && !slices.Contains(columns, "RowVersion")
	return t
}

// unfit returns the reason why a table without lease_id is not received from: [dialect.ErrForeign],
// or that it is no queue at all.
func unfit(columns []string) error {
	for _, c := range []string{"Id", "Expires", "Headers", "Body", "RowVersion"} {
		if !slices.Contains(columns, c) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table is no queue: it has no column %q", c)}
		}
	}
	return dialect.ErrForeign
}

// columns returns the columns of a queue's table, and none where there is no table.
func (s *store) columns(ctx context.Context, queue string) (names []string, err error) {
	err = each(ctx, s.db, values(&names), s.table(queue).columns)
	return names, err
}
