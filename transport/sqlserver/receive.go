package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"math"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// claimer is the part of a store that claims rows and keeps their leases.
type claimer struct {
	*db
	clock dialect.Clock // of the server
}

// Claim implements [tablequeue.Queues].
func (cl *claimer) Claim(
	ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed,
) ([]tablequeue.Claimed, time.Duration, error) {
	var (
		rows       []tablequeue.Claimed
		next       int64
		asked, now time.Time // now is the server's; zero if the answer has no time
	)
	err := cl.repeat(ctx, c.Queue, func() (err error) {
		asked = time.Now()
		rows, now, next, err = cl.claim(ctx, c, into)
		return err
	})
	if err != nil {
		return into[:0], 0, failed(err, "receive from queue %q", c.Queue)
	}
	if !now.IsZero() && cl.clock.Follow(ctx, c.Queue, c.For, now, asked, time.Now()) && len(rows) == 0 {
		next = 1
	}
	return rows, time.Duration(next) * time.Microsecond, nil
}

// claim reads the leased rows. The result that follows has the server's time and, without leased
// rows, the microseconds until the next row is due.
func (cl *claimer) claim(
	ctx context.Context, c tablequeue.Claim, into []tablequeue.Claimed,
) (_ []tablequeue.Claimed, now time.Time, next int64, err error) {
	rows, err := cl.engine.QueryContext(ctx, cl.table(c.Queue).claim, sql.Named("limit", c.Limit),
		sql.Named("for", c.For.Microseconds()), sql.Named("lease", c.Lease), sql.Named("owner", mssql.NVarCharMax(c.Owner)),
		sql.Named("bytes", cmp.Or(c.MaxBytes, math.MaxInt64)))
	if err != nil {
		return into, now, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var row tablequeue.Claimed
		if err := rows.Scan(&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count, &row.Expired); err != nil {
			return into, now, 0, err
		}
		into = append(into, row)
	}
	var due sql.Null[int64]
	if rows.Err() == nil && rows.NextResultSet() && rows.Next() {
		err = rows.Scan(&now, &due)
	}
	if err == nil {
		err = rows.Err()
	}
	return into, now, due.V, err
}

// Renew implements [tablequeue.Queues].
func (cl *claimer) Renew(
	ctx context.Context, queue string, leases []tablequeue.Lease, d time.Duration,
) ([]bool, error) {
	lost, named := make([]bool, len(leases)), make([][]int64, len(leases))
	for i, l := range leases {
		lost[i], named[i] = true, []int64{int64(i), l.Seq, l.ID}
	}
	err := cl.repeat(ctx, queue, func() error {
		return each(ctx, cl.engine, hits(func(i int) { lost[i] = false }), cl.table(queue).renew,
			list("rows", named), sql.Named("for", d.Microseconds()))
	})
	return lost, failed(err, "renew leases of queue %q", queue)
}

// hits scans the numbers of the rows that a statement has hit.
func hits(hit func(i int)) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var i int
		if err := rows.Scan(&i); err != nil {
			return err
		}
		hit(i)
		return nil
	}
}

// Abandon implements [tablequeue.Queues].
func (cl *claimer) Abandon(ctx context.Context, queue, owner string, d time.Duration) error {
	return cl.abandon(ctx, queue, cl.table(queue).abandon, sql.Named("for", d.Microseconds()), sql.Named("owner", mssql.NVarCharMax(owner)))
}

// AbandonClaims implements [tablequeue.Orphaner].
func (cl *claimer) AbandonClaims(
	ctx context.Context, queue string, leases []int64, d time.Duration,
) error {
	return cl.abandon(ctx, queue, cl.table(queue).orphans, sql.Named("for", d.Microseconds()), list("leases", leases))
}

func (cl *claimer) abandon(ctx context.Context, queue, statement string, args ...any) error {
	_, err := cl.engine.ExecContext(ctx, statement, args...)
	if n := numberOf(err); n == invalidColumn || n == missingIndex { // handed over to NServiceBus
		return nil
	}
	return failed(err, "abandon leases of queue %q", queue)
}

// Cancel implements [tablequeue.Queues].
func (cl *claimer) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	var n int64
	err := cl.repeat(ctx, queue, func() (err error) {
		n, err = changed(ctx, cl.engine, cl.table(queue).cancel, sql.Named("seq", seq))
		return err
	})
	return n > 0, failed(err, "cancel message %d of queue %q", seq, queue)
}

// restore makes rows of a queue visible after the clock was set back.
func (cl *claimer) restore(
	ctx context.Context, queue string, step dialect.StepBack,
) (int64, error) {
	return changed(
		ctx, cl.engine, cl.table(queue).restore, sql.Named("before", step.Before.UnixMicro()),
		sql.Named("by", -step.By.Microseconds()), sql.Named("leases", step.Leases.Microseconds()),
	)
}

// Hasten implements [tablequeue.Hastener].
func (cl *claimer) Hasten(ctx context.Context, queue string, seqs []int64) error {
	err := cl.repeat(ctx, queue, func() error {
		_, err := cl.engine.ExecContext(ctx, cl.table(queue).hasten, list("seqs", seqs))
		return err
	})
	return failed(err, "make rows of queue %q visible", queue)
}
