package postgres

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Claim implements [tablequeue.Queues].
func (s *store) Claim(ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed) ([]tablequeue.Claimed, time.Duration, error) {
	var (
		row  tablequeue.Claimed
		next int64
	)
	t := s.table(c.Queue)
	from, all := t.front.begin(time.Now())
	maxBytes := cmp.Or(c.MaxBytes, math.MaxInt64)
	rows, err := s.query(ctx, s.leases, claiming, t.claim, c.Limit, c.For.Microseconds(), c.Lease, c.Owner, from.visibleAt, from.seq, maxBytes)
	if err == nil {
		var due int64
		to := []any{&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count, &row.Expired, &due}
		_, err = pgx.ForEachRow(rows, to, func() error {
			if row.Seq != 0 {
				into = append(into, row)
				return nil
			}
			next = due
			to, took, err := look(row.ID, row.Headers, int32(row.Count))
			t.front.reached(to, all, took, time.Now())
			return err
		})
	}
	if err != nil {
		return into[:0], 0, s.failed(fmt.Sprintf("receive from queue %q", c.Queue), err)
	}
	return into, time.Duration(next) * time.Microsecond, nil
}

// Renew implements [tablequeue.Queues].
func (s *store) Renew(ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration) ([]bool, error) {
	seqs, ids := make(array[number], len(leases)), make(array[number], len(leases))
	lost := make([]bool, len(leases))
	for i, l := range leases {
		seqs[i], ids[i], lost[i] = number(l.Seq), number(l.ID), true
	}
	rows, err := s.query(ctx, s.renewals, lazily, s.table(queue).renew, d.Microseconds(), seqs, ids)
	if err == nil {
		err = eachHit(rows, func(i int) { lost[i] = false })
	}
	if err != nil {
		return nil, s.failed(fmt.Sprintf("renew leases of queue %q", queue), err)
	}
	return lost, nil
}

// Abandon implements [tablequeue.Queues].
func (s *store) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	if _, err := s.execute(ctx, s.table(queue).abandon, owner, d.Microseconds()); err != nil {
		return s.failed(fmt.Sprintf("abandon leases of queue %q", queue), err)
	}
	return nil
}

// AbandonClaims implements [tablequeue.Orphaner].
func (s *store) AbandonClaims(ctx context.Context, queue string, leases []int64, d time.Duration) error {
	if _, err := s.execute(ctx, s.table(queue).orphans, leases, d.Microseconds()); err != nil {
		return s.failed(fmt.Sprintf("abandon leases of queue %q", queue), err)
	}
	return nil
}

// Cancel implements [tablequeue.Queues].
func (s *store) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	tag, err := s.execute(ctx, s.table(queue).cancel, seq)
	if err != nil {
		return false, s.failed(fmt.Sprintf("cancel message %d of queue %q", seq, queue), err)
	}
	return tag.RowsAffected() > 0, nil
}
