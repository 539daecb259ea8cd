package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// claimer is the part of a store that claims rows and keeps their leases.
type claimer struct{ *db }

// Claim implements [tablequeue.Queues]. It reads before it writes, so that an empty queue takes no
// lock.
func (cl *claimer) Claim(
	ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed,
) ([]tablequeue.Claimed, time.Duration, error) {
	cl.clock.follow(ctx, &c)
	next, due, err := cl.look(ctx, c.Queue)
	if err == nil && !due {
		return into, next, nil
	}
	rows := into
	if err == nil {
		err = cl.writer.do(ctx, lease, func(*sql.Tx) (err error) {
			now := cl.clock.now()
			if rows, err = cl.claimRows(c, now, into); err != nil || len(rows) > len(into) {
				return err
			}
			next, _, err = until(cl.writer.statements[firstVisible].QueryRowContext(context.Background(), c.Queue), now)
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
func (cl *claimer) look(
	ctx context.Context, queue string,
) (next time.Duration, due bool, err error) {
	if err := cl.file.checkSometimes(); err != nil {
		return 0, false, err
	}
	err = unlessBusy(ctx, func() error {
		row := cl.first.QueryRowContext(context.WithoutCancel(ctx), queue)
		next, due, err = until(row, cl.clock.now())
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

func (cl *claimer) claimRows(
	c tablequeue.Claim, now int64, into []tablequeue.Claimed,
) (_ []tablequeue.Claimed, err error) {
	claim, args := cl.writer.statements[claimAny], []any{later(now, c.For), c.Lease, c.Owner, c.Queue, now, c.Limit}
	if c.MaxBytes > 0 {
		// All fit most of the time, and one sum is cheaper than running sums.
		var size int64
		err := cl.writer.statements[sizeOfAny].QueryRowContext(context.Background(), c.Queue, now, c.Limit).Scan(&size)
		if err != nil {
			return into, err
		}
		if size > c.MaxBytes {
			claim, args = cl.writer.statements[claimFitting], append(args, c.MaxBytes)
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
func (cl *claimer) Renew(
	ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration,
) ([]bool, error) {
	lost := make([]bool, len(leases))
	err := cl.writer.do(ctx, lease, func(*sql.Tx) error {
		end := later(cl.clock.now(), d)
		for i, l := range leases {
			n, err := cl.writer.change(renewLease, end, l.Seq, l.ID)
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
func (cl *claimer) Hasten(ctx context.Context, queue string, seqs []int64) error {
	err := cl.writer.do(ctx, lease, func(*sql.Tx) error {
		now := cl.clock.now()
		for _, seq := range seqs {
			if _, err := cl.writer.change(hastenDeferred, now, queue, seq, queue, now); err != nil {
				return err
			}
		}
		return nil
	})
	return failed(err, "make messages of queue %q visible", queue)
}

// Abandon implements [tablequeue.Queues].
func (cl *claimer) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	err := cl.writer.do(ctx, lease, func(*sql.Tx) error {
		now := cl.clock.now()
		_, err := cl.writer.change(abandonLeases, now, queue, now, later(now, d), owner)
		return err
	})
	return failed(err, "abandon the messages of queue %q", queue)
}

// clock is the clock of the machine, which all processes that use a file have in common.
type clock struct {
	dialect.Clock
	wall func() time.Time // time.Now; a test sets another function before the store is used
}

// now returns the time as the file stores it.
func (c *clock) now() int64 { return micros(c.wall()) }

// follow looks for a step of the clock before a claim. After a step back, follow makes rows visible
// that were visible before.
func (c *clock) follow(ctx context.Context, claim *tablequeue.Claim) {
	asked := time.Now()
	now := time.UnixMicro(c.now()) // without a monotonic time, by which Follow would find no step
	c.Follow(ctx, claim.Queue, claim.For, now, asked, time.Now())
}

const (
	// maxRestored bounds the rows of a transaction that makes rows visible again.
	maxRestored = 10_000

	// restoreHidden makes rows visible if they were visible at the time ?4, before the clock was set
	// back by ?2. Leases that last for more than ?5 end earlier by ?2.
	restoreHidden = `
		update holdfast_messages
		set visible_at = case when lease_id is null then ?1 else visible_at - ?2 end
		where seq in (
			select seq from holdfast_messages
			where queue = ?3 and visible_at > ?1
				and case when lease_id is null then visible_at <= ?4 else visible_at > ?1 + ?5 end
			order by visible_at, seq limit ?6)`
)

// restore makes rows of a queue visible after the clock was set back.
func (cl *claimer) restore(
	ctx context.Context, queue string, step dialect.StepBack,
) (n int64, err error) {
	err = cl.writer.do(ctx, durable, func(*sql.Tx) (err error) {
		n, err = cl.writer.execute(restoreHidden, cl.clock.now(), step.By.Microseconds(), queue,
			micros(step.Before), step.Leases.Microseconds(), int64(maxRestored))
		return err
	})
	return n, err
}

// The pauses between two checks of the file: they double from the first to the second while the
// file does not change.
const (
	minListen = 4 * time.Millisecond
	maxListen = 32 * time.Millisecond
)

// Listen implements [tablequeue.Waker]. SQLite reports to a connection that another one has
// committed, but not in which table: Listen wakes all queues that were claimed from. It also
// notices the commits of this process, which are those of another connection.
func (cl *claimer) Listen(ctx context.Context, ready func(), wake func(queue string)) error {
	conn, err := connection(ctx, cl.read)
	if err != nil {
		return failed(err, "listen")
	}
	defer conn.Close()
	ready()
	pause := minListen
	for known := int64(-1); ; pause = min(2*pause, maxListen) {
		var now int64
		err := unlessBusy(ctx, func() error {
			return conn.QueryRowContext(context.WithoutCancel(ctx), "pragma data_version").Scan(&now)
		})
		if err != nil {
			return failed(err, "listen")
		}
		if now != known {
			known, pause = now, minListen
			for queue := range cl.clock.Queues() {
				wake(queue)
			}
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// Notify implements [tablequeue.Waker]. It does nothing: listeners notice the commit itself.
func (cl *claimer) Notify(context.Context, []string) error { return nil }
