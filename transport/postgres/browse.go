package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// browser is the part of a store with which tools list rows and remove them.
type browser struct {
	*db
	writer *writer
}

// Last implements [tablequeue.Browsing].
func (br *browser) Last(ctx context.Context, queue string) (last int64, err error) {
	rows, err := br.query(ctx, br.writes, `SELECT seq FROM `+br.table(queue).quoted+` ORDER BY seq DESC LIMIT 1`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&last}, func() error { return nil })
	}
	return last, br.failed(err, "look at queue %q", queue)
}

var errPageFull = errors.New("enough bytes for a page")

// Browse implements [tablequeue.Browsing]. The rows of a foreign table have no count.
func (br *browser) Browse(ctx context.Context, p tablequeue.Page) ([]tablequeue.Claimed, error) {
	found, err := br.browse(ctx, p, "delivery_count")
	if code(err) == undefinedColumn {
		found, err = br.browse(ctx, p, "0")
	}
	return found, br.failed(err, "look at queue %q", p.Queue)
}

func (br *browser) browse(
	ctx context.Context, p tablequeue.Page, count string,
) (found []tablequeue.Claimed, err error) {
	rows, err := br.query(ctx, br.writes, `SELECT seq, id::text, headers, body, `+count+` FROM `+br.table(p.Queue).quoted+`
WHERE seq > $1 AND seq <= $2 AND (expires IS NULL OR expires > now() AT TIME ZONE 'UTC') ORDER BY seq LIMIT $3`, p.After, p.Last, p.Limit)
	if err == nil {
		var row tablequeue.Claimed
		size := 0
		to := []any{&row.Seq, &row.ID, &row.Headers, &row.Body, &row.Count}
		_, err = pgx.ForEachRow(rows, to, func() error {
			found = append(found, row)
			if size += len(row.Body); size > tablequeue.MaxPage {
				return errPageFull
			}
			return nil
		})
	}
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, err
}

// Purge implements [tablequeue.Browsing]. A row that is leased or received meanwhile stays.
func (br *browser) Purge(ctx context.Context, queue string) (int64, error) {
	t := br.table(queue)
	tag, err := br.execute(ctx, t.purge)
	if code(err) == undefinedColumn {
		tag, err = br.execute(ctx, purgeForeign(t))
	}
	return tag.RowsAffected(), br.failed(err, "purge queue %q", queue)
}

// Take implements [tablequeue.Browsing] in one round trip.
func (br *browser) Take(ctx context.Context, u *tablequeue.Unit) error {
	err := br.take(ctx, u)
	if code(err) == undefinedColumn && br.Foreign(u.Queue) { // which was not known
		err = br.take(ctx, u)
	}
	return br.failed(err, "take message %d of queue %q", u.Lease.Seq, u.Queue)
}

func (br *browser) take(ctx context.Context, u *tablequeue.Unit) error {
	if br.Foreign(u.Queue) {
		return br.takeForeign(ctx, u)
	}
	return br.writer.flush(ctx, []*tablequeue.Unit{u}, func(b *pgx.Batch) {
		b.Queue(br.table(u.Queue).take, u.Lease.ID, u.Lease.Seq)
	})
}

// takeForeign takes a row of a table that has no leases.
func (br *browser) takeForeign(ctx context.Context, u *tablequeue.Unit) error {
	units := []*tablequeue.Unit{u}
	return br.writer.detector.Repeat(ctx, units, func() error {
		b, g := br.batch(br.writes), br.writer.groups(units)[0]
		args := g.withOuts(u.Lease.Seq, u.RowID)
		b.Queue(taking(g.queue, g.outs), br.args(args)...).Query(g.settled)
		_, err := br.write(ctx, b)
		return err
	})
}
