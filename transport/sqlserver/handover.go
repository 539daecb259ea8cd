package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var _ tablequeue.HandingOver = (*store)(nil)

// Holders implements [tablequeue.HandingOver].
func (s *store) Holders(ctx context.Context, queue string) (all []tablequeue.Holder, err error) {
	err = each(ctx, s.db, func(rows *sql.Rows) error {
		var h tablequeue.Holder
		err := rows.Scan(&h.Owner, &h.Rows)
		all = append(all, h)
		return err
	}, s.handOver(queue).holders)
	return all, failed(err, "look for leases of queue %q", queue)
}

func (s *store) handOver(queue string) handOver {
	return newHandOver(s.place(queue), s.delayedPlace(queue))
}

// PrepareHandOver implements [tablequeue.HandingOver]. Ids need no index: NServiceBus receives by
// RowVersion.
func (s *store) PrepareHandOver(ctx context.Context, queue string) error {
	if err := checkName("queue", s.delayedPlace(queue).table); err != nil {
		return failed(&tablequeue.UnfitError{Reason: "its name is too long for NServiceBus, whose table of delayed messages adds " +
			tablequeue.DelayedSuffix}, "queue %q", queue)
	}
	columns, err := s.columns(ctx, queue)
	if err == nil && (traits{}).of(columns).first {
		err = &tablequeue.UnfitError{
			Reason: `it is of version 1, which NServiceBus cannot read: "holdfast endpoint create --adopt" rewrites the table`,
		}
	}
	if err != nil {
		return failed(err, "queue %q", queue)
	}
	if _, err := s.HasDelayed(ctx, queue); err != nil {
		return err
	}
	h := s.handOver(queue)
	if _, err := s.db.ExecContext(ctx, h.fill); err != nil {
		return failed(err, "replace empty bodies of queue %q", queue)
	}
	err = s.installing(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, h.create)
		return err
	})
	return failed(err, "create the table of delayed messages of queue %q", queue)
}

// MoveDelayed implements [tablequeue.HandingOver].
func (s *store) MoveDelayed(ctx context.Context, queue, from string, limit int, headers func(string) string) (moved int, err error) {
	err = s.repeat(ctx, from, func() error {
		return s.inTx(ctx, func(tx *sql.Tx) (err error) {
			moved, err = s.moveDelayed(ctx, waiting{tx, lockWait}, queue, from, limit, headers)
			return err
		})
	})
	if err != nil {
		moved = 0
	}
	return moved, failed(err, "move delayed messages of queue %q", from)
}

func (s *store) moveDelayed(ctx context.Context, o on, queue, from string, limit int, headers func(string) string) (int, error) {
	statements := newMoving(s.table(from), s.delayedPlace(queue), from != queue)
	var found [][]any
	err := each(ctx, o, func(rows *sql.Rows) error {
		var seq int64
		var text string
		err := rows.Scan(&seq, &text)
		found = append(found, []any{seq, headers(text)})
		return err
	}, statements.find, sql.Named("limit", limit))
	if err != nil || len(found) == 0 {
		return 0, err
	}
	moved, err := changed(ctx, o, statements.move, list("rows", found))
	if err == nil && int(moved) != len(found) {
		err = fmt.Errorf("%d of %d messages were moved", moved, len(found))
	}
	return len(found), err
}

// maxEndRows bounds the rows that are moved at once while the table is locked.
const maxEndRows = 1000

// EndHandOver implements [tablequeue.HandingOver].
func (s *store) EndHandOver(ctx context.Context, queue string, headers func(string) string) (moved int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) (err error) {
		moved, err = s.endHandOver(ctx, waiting{tx, adoptionWait}, queue, headers)
		return err
	})
	if err != nil {
		return 0, failed(err, "end the use of queue %q", queue)
	}
	columns, err := s.columns(ctx, queue)
	if err == nil {
		s.tables.Set(queue, newTable(s.Schema, s.place(queue), traits{}.of(columns)))
	}
	return moved, failed(err, "queue %q", queue)
}

func (s *store) endHandOver(ctx context.Context, o on, queue string, headers func(string) string) (moved int, err error) {
	h := s.handOver(queue)
	if err := each(ctx, o, func(*sql.Rows) error { return nil }, h.lock); err != nil {
		return 0, err
	}
	switch held, err := changed(ctx, o, h.leased); {
	case err != nil:
		return 0, err
	case held > 0:
		return 0, tablequeue.ErrLeased
	}
	for {
		n, err := s.moveDelayed(ctx, o, queue, queue, maxEndRows, headers)
		if err != nil {
			return 0, err
		}
		if moved += n; n == 0 {
			break
		}
	}
	for _, statement := range []string{h.end, s.table(queue).forget} {
		if _, err := o.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	return moved, nil
}
