package postgres

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Claim implements [tablequeue.Queues].
func (s *store) Claim(
	ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed,
) ([]tablequeue.Claimed, time.Duration, error) {
	var (
		row  tablequeue.Claimed
		next int64
		now  time.Time // of the server
	)
	t := s.table(c.Queue)
	asked := time.Now()
	from, all := t.front.begin(asked)
	maxBytes := cmp.Or(c.MaxBytes, math.MaxInt64)
	rows, err := s.query(ctx, s.leases, t.claim, c.Limit, c.For.Microseconds(), c.Lease, c.Owner,
		from.visibleAt, from.seq, maxBytes)
	if err == nil {
		var due int64
		to := []any{&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count, &row.Expired, &due}
		_, err = pgx.ForEachRow(rows, to, func() error {
			if row.Seq != 0 {
				into = append(into, row)
				return nil
			}
			to, took, err := look(row.ID, row.Headers, int32(row.Count))
			t.front.reached(to, all, took, time.Now())
			if next, now = due, to.visibleAt.Time.Add(uncommitted); due < 0 {
				next, now = 0, time.UnixMicro(-due)
			}
			return err
		})
	}
	if err != nil {
		return into[:0], 0, s.failed(err, "receive from queue %q", c.Queue)
	}
	if s.clock.Follow(ctx, c.Queue, c.For, now, asked, time.Now()) && len(into) == 0 {
		next = 1
	}
	return into, time.Duration(next) * time.Microsecond, nil
}

// uncommitted is the time for which rows that were inserted or retried may not be committed yet, for
// the place in the report of a claim.
const uncommitted = 250 * time.Millisecond

// Renew implements [tablequeue.Queues].
func (s *store) Renew(
	ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration,
) ([]bool, error) {
	seqs, ids := make(array[number], len(leases)), make(array[number], len(leases))
	lost := make([]bool, len(leases))
	for i, l := range leases {
		seqs[i], ids[i], lost[i] = number(l.Seq), number(l.ID), true
	}
	rows, err := s.query(ctx, s.renewals, s.table(queue).renew, d.Microseconds(), seqs, ids)
	if err == nil {
		err = eachNumber(rows, func(n int64) { lost[n-1] = false })
	}
	return lost, s.failed(err, "renew leases of queue %q", queue)
}

// Abandon implements [tablequeue.Queues].
func (s *store) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	_, err := s.execute(ctx, s.table(queue).abandon, owner, d.Microseconds())
	if code(err) == undefinedColumn { // handed over to NServiceBus
		return nil
	}
	return s.failed(err, "abandon leases of queue %q", queue)
}

// AbandonClaims implements [tablequeue.Orphaner].
func (s *store) AbandonClaims(ctx context.Context, queue string, leases []int64, d time.Duration) error {
	_, err := s.execute(ctx, s.table(queue).orphans, leases, d.Microseconds())
	return s.failed(err, "abandon leases of queue %q", queue)
}

// Cancel implements [tablequeue.Queues].
func (s *store) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	tag, err := s.execute(ctx, s.table(queue).cancel, seq)
	if code(err) == undefinedColumn { // handed over to NServiceBus, with its delayed messages
		return false, nil
	}
	return tag.RowsAffected() > 0, s.failed(err, "cancel message %d of queue %q", seq, queue)
}
