package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Claim implements [tablequeue.Queues]. It reads before it writes, so that an empty queue takes no
// lock.
func (s *store) Claim(ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed) ([]tablequeue.Claimed, time.Duration, error) {
	s.clock.follow(ctx, &c)
	next, due, err := s.look(ctx, c.Queue)
	if err == nil && !due {
		return into, next, nil
	}
	rows := into
	if err == nil {
		err = s.writer.do(ctx, lease, func(*sql.Tx) (err error) {
			now := s.clock.now()
			if rows, err = s.writer.claimRows(c, now, into); err != nil || len(rows) > len(into) {
				return err
			}
			next, _, err = until(s.writer.statements[firstVisible].QueryRowContext(context.Background(), c.Queue), now)
			return err
		})
	}
	if err != nil {
		return into, 0, failed(err, "claim from queue %q", c.Queue)
	}
	return rows, next, nil
}

// look returns the time at which the first row of queue becomes visible, and reports whether it is
// visible. It ignores the end of ctx, as a reader hardly ever waits.
func (s *store) look(ctx context.Context, queue string) (next time.Duration, due bool, err error) {
	if err := s.file.checkSometimes(); err != nil {
		return 0, false, err
	}
	err = unlessBusy(ctx, func() error {
		row := s.first.QueryRowContext(context.WithoutCancel(ctx), queue)
		next, due, err = until(row, s.clock.now())
		return err
	})
	return next, due, err
}

func until(row *sql.Row, now int64) (next time.Duration, due bool, err error) {
	var at sql.Null[int64]
	if err := row.Scan(&at); err != nil || !at.Valid {
		return 0, false, err
	}
	return time.Duration(max(0, min(at.V-now, farOff))) * time.Microsecond, at.V <= now, nil
}

// farOff is a number of microseconds longer than any wait for a row.
const farOff = int64(time.Hour / time.Microsecond)

func (w *writer) claimRows(c tablequeue.Claim, now int64, into []tablequeue.Claimed) (_ []tablequeue.Claimed, err error) {
	claim, args := w.statements[claimAny], []any{later(now, c.For), c.Lease, c.Owner, c.Queue, now, c.Limit}
	if c.MaxBytes > 0 {
		// All fit most of the time, and one sum is cheaper than running sums.
		var size int64
		err := w.statements[sizeOfAny].QueryRowContext(context.Background(), c.Queue, now, c.Limit).Scan(&size)
		if err != nil {
			return into, err
		}
		if size > c.MaxBytes {
			claim, args = w.statements[claimFitting], append(args, c.MaxBytes)
		}
	}
	rows, err := claim.QueryContext(context.Background(), args...)
	if err != nil {
		return into, err
	}
	defer rows.Close()
	for rows.Next() {
		var r tablequeue.Claimed
		var expires sql.Null[int64]
		if err := rows.Scan(&r.Seq, &r.ID, &r.Headers, &r.Body, &r.Count, &expires); err != nil {
			return into, err
		}
		r.Expired = expires.Valid && expires.V <= now
		into = append(into, r)
	}
	return into, rows.Err()
}

// Renew implements [tablequeue.Queues].
func (s *store) Renew(ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration) ([]bool, error) {
	lost := make([]bool, len(leases))
	err := s.writer.do(ctx, lease, func(*sql.Tx) error {
		end := later(s.clock.now(), d)
		for i, l := range leases {
			n, err := s.writer.change(renewLease, end, l.Seq, l.ID)
			if err != nil {
				return err
			}
			lost[i] = n == 0
		}
		return nil
	})
	return lost, failed(err, "renew leases in queue %q", queue)
}

// Hasten implements [tablequeue.Hastener].
func (s *store) Hasten(ctx context.Context, queue string, seqs []int64) error {
	err := s.writer.do(ctx, lease, func(*sql.Tx) error {
		now := s.clock.now()
		for _, seq := range seqs {
			if _, err := s.writer.change(hastenDeferred, now, queue, seq, queue, now); err != nil {
				return err
			}
		}
		return nil
	})
	return failed(err, "make messages of queue %q visible", queue)
}

// Abandon implements [tablequeue.Queues].
func (s *store) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	err := s.writer.do(ctx, lease, func(*sql.Tx) error {
		now := s.clock.now()
		_, err := s.writer.change(abandonLeases, now, queue, now, later(now, d), owner)
		return err
	})
	return failed(err, "abandon the messages of queue %q", queue)
}
