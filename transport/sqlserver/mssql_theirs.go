package sqlserver

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Numbers by which the server refuses a statement because of what its table is.
const (
	invalidColumn = 207 // one of NServiceBus's
	hasTriggers   = 334 // OUTPUT without INTO
)

// knowing writes units: again where that has failed because of what was not known of a table.
func (s *mssqlStore) knowing(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	for {
		if err := s.delayable(units); err != nil {
			return err
		}
		err := write()
		if err == nil || !s.learned(ctx, queuesOf(units), err) {
			return err
		}
	}
}

// delayable refuses delayed rows for tables of theirs.
func (s *mssqlStore) delayable(units []*tablequeue.Unit) error {
	for _, u := range units {
		for i := range u.Rows {
			r := &u.Rows[i]
			if (r.After > 0 || !r.At.IsZero()) && s.table(r.Queue).traits.theirs {
				return fmt.Errorf("mssql: send to queue %q: %w", r.Queue, errDelay)
			}
		}
	}
	return nil
}

func queuesOf(units []*tablequeue.Unit) (queues []string) {
	add := func(queue string) {
		if !slices.Contains(queues, queue) {
			queues = append(queues, queue)
		}
	}
	for _, u := range units {
		if u.Verb != tablequeue.Send {
			add(u.Queue)
		}
		for i := range u.Rows {
			add(u.Rows[i].Queue)
		}
	}
	return queues
}

// learned tells whether err came of what was not known of a queue's table, and now is. Which of the tables has the
// triggers the server says in words only, so that all are taken for ones that have.
func (s *mssqlStore) learned(ctx context.Context, queues []string, err error) (news bool) {
	number, _ := mssqlNumber(err)
	for _, q := range queues {
		was := s.table(q).traits
		traits := was
		switch number {
		case hasTriggers:
			traits.triggers = true
		case invalidColumn:
			if columns, err := s.columns(ctx, q); err == nil {
				traits.theirs = len(columns) > 0 && !slices.Contains(columns, "lease_id")
				traits.recoverable = traits.theirs && slices.Contains(columns, "Recoverable")
			}
		}
		if traits != was {
			s.tables.Store(q, newMSSQLTable(s.schema, s.place(q), traits))
			news = true
		}
	}
	return news
}

// columns are those of a queue's table, none where there is no table.
func (s *mssqlStore) columns(ctx context.Context, queue string) (names []string, err error) {
	err = each(ctx, s.db, texts(&names), s.table(queue).columns)
	return names, err
}
