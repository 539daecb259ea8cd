package sqlserver

import (
	"context"
	"database/sql"
	"errors"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// browser is the part of a store with which tools list rows and remove them.
type browser struct {
	*db
	writer *writer
}

// Last implements [tablequeue.Browsing].
func (br *browser) Last(ctx context.Context, queue string) (last int64, err error) {
	err = br.repeat(ctx, queue, func() error { return br.engine.QueryRowContext(ctx, br.table(queue).last).Scan(&last) })
	return last, failed(err, "look at queue %q", queue)
}

// Browse implements [tablequeue.Browsing].
func (br *browser) Browse(
	ctx context.Context, p tablequeue.Page,
) (found []tablequeue.Claimed, err error) {
	err = br.repeat(ctx, p.Queue, func() (err error) {
		found, err = br.page(ctx, p)
		return err
	})
	return found, failed(err, "look at queue %q", p.Queue)
}

func (br *browser) page(
	ctx context.Context, p tablequeue.Page,
) (found []tablequeue.Claimed, err error) {
	size := 0
	err = each(ctx, br.engine, func(rows *sql.Rows) error {
		var row tablequeue.Claimed
		err := rows.Scan(&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count)
		found = append(found, row)
		if size += len(row.Body); err == nil && size > tablequeue.MaxPage {
			return errPageFull
		}
		return err
	}, br.table(p.Queue).browse, sql.Named("limit", p.Limit), sql.Named("after", p.After), sql.Named("last", p.Last))
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, err
}

var errPageFull = errors.New("enough bytes for a page")

// Purge implements [tablequeue.Browsing].
func (br *browser) Purge(ctx context.Context, queue string) (all int64, err error) {
	for n := int64(tablequeue.MaxSwept); n >= tablequeue.MaxSwept && err == nil; all += n {
		err = br.repeat(ctx, queue, func() (err error) {
			n, err = changed(ctx, br.engine, br.table(queue).purge)
			return err
		})
	}
	return all, failed(err, "purge queue %q", queue)
}

// Take implements [tablequeue.Browsing].
func (br *browser) Take(ctx context.Context, u *tablequeue.Unit) error {
	units := []*tablequeue.Unit{u}
	err := br.detector.Repeat(ctx, units, func() error {
		return br.inTx(ctx, func(tx *sql.Tx) error {
			if br.Foreign(u.Queue) {
				return br.takeForeign(ctx, tx, u)
			}
			_, err := tx.ExecContext(ctx, br.table(u.Queue).take, sql.Named("lease", u.Lease.ID), sql.Named("seq", u.Lease.Seq))
			if err != nil {
				return err
			}
			return br.writer.write(ctx, tx, units)
		})
	})
	return failed(err, "take message %d of queue %q", u.Lease.Seq, u.Queue)
}

// takeForeign deletes the row of u, which its table has no lease for, and inserts the rows that are
// sent with it.
func (br *browser) takeForeign(ctx context.Context, tx *sql.Tx, u *tablequeue.Unit) error {
	n, err := changed(ctx, tx, br.table(u.Queue).take, sql.Named("seq", u.Lease.Seq), sql.Named("id", u.RowID))
	if u.Lost = n == 0; err != nil || u.Lost {
		return err
	}
	return br.writer.insert(ctx, tx, []*tablequeue.Unit{u})
}
