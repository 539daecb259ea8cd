package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Last implements [tablequeue.Browsing].
func (s *store) Last(ctx context.Context, queue string) (last int64, err error) {
	rows, err := s.query(ctx, s.writes, `SELECT seq FROM `+s.table(queue).quoted+` ORDER BY seq DESC LIMIT 1`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&last}, func() error { return nil })
	}
	return last, s.failed(err, "look at queue %q", queue)
}

var errPageFull = errors.New("enough bytes for a page")

// Browse implements [tablequeue.Browsing]. The rows of a foreign table have no count.
func (s *store) Browse(ctx context.Context, p tablequeue.Page) ([]tablequeue.Claimed, error) {
	found, err := s.browse(ctx, p, "delivery_count")
	if code(err) == undefinedColumn {
		found, err = s.browse(ctx, p, "0")
	}
	return found, s.failed(err, "look at queue %q", p.Queue)
}

func (s *store) browse(
	ctx context.Context, p tablequeue.Page, count string,
) (found []tablequeue.Claimed, err error) {
	rows, err := s.query(ctx, s.writes, `SELECT seq, id::text, headers, body, `+count+` FROM `+s.table(p.Queue).quoted+`
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
func (s *store) Purge(ctx context.Context, queue string) (int64, error) {
	t := s.table(queue)
	tag, err := s.execute(ctx, t.purge)
	if code(err) == undefinedColumn {
		tag, err = s.execute(ctx, purgeForeign(t))
	}
	return tag.RowsAffected(), s.failed(err, "purge queue %q", queue)
}

// Take implements [tablequeue.Browsing] in one round trip.
func (s *store) Take(ctx context.Context, u *tablequeue.Unit) error {
	err := s.take(ctx, u)
	if code(err) == undefinedColumn && s.Foreign(u.Queue) { // which was not known
		err = s.take(ctx, u)
	}
	return s.failed(err, "take message %d of queue %q", u.Lease.Seq, u.Queue)
}

func (s *store) take(ctx context.Context, u *tablequeue.Unit) error {
	if s.Foreign(u.Queue) {
		return s.takeForeign(ctx, u)
	}
	return s.flush(ctx, []*tablequeue.Unit{u}, func(b *pgx.Batch) {
		b.Queue(s.table(u.Queue).take, u.Lease.ID, u.Lease.Seq)
	})
}

// takeForeign takes a row of a table that has no leases.
func (s *store) takeForeign(ctx context.Context, u *tablequeue.Unit) error {
	units := []*tablequeue.Unit{u}
	return s.detector.Repeat(ctx, units, func() error {
		b, g := s.batch(s.writes), s.groups(units)[0]
		args := g.withOuts(u.Lease.Seq, u.RowID)
		b.Queue(taking(g.queue, g.outs), s.args(args)...).Query(g.settled)
		_, err := s.write(ctx, b)
		return err
	})
}
