package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// Last implements [tablequeue.Browsing].
func (s *store) Last(ctx context.Context, queue string) (last int64, err error) {
	rows, err := s.query(ctx, s.writes, lazily, `SELECT seq FROM `+s.table(queue).quoted+` ORDER BY seq DESC LIMIT 1`)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&last}, func() error { return nil })
	}
	if err != nil {
		return 0, s.failed(fmt.Sprintf("look at queue %q", queue), err)
	}
	return last, nil
}

var errPageFull = errors.New("enough bytes for a page")

// Browse implements [tablequeue.Browsing].
func (s *store) Browse(ctx context.Context, p tablequeue.Page) (found []tablequeue.Claimed, err error) {
	rows, err := s.query(ctx, s.writes, lazily, `SELECT seq, id, headers, body, delivery_count FROM `+s.table(p.Queue).quoted+`
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
	if err != nil && !errors.Is(err, errPageFull) {
		return nil, s.failed(fmt.Sprintf("look at queue %q", p.Queue), err)
	}
	return found, nil
}

// Purge implements [tablequeue.Browsing]. A row that is leased meanwhile stays.
func (s *store) Purge(ctx context.Context, queue string) (int64, error) {
	tag, err := s.execute(ctx, s.table(queue).purge)
	if err != nil {
		return 0, s.failed(fmt.Sprintf("purge queue %q", queue), err)
	}
	return tag.RowsAffected(), nil
}

// Take implements [tablequeue.Browsing] in one round trip.
func (s *store) Take(ctx context.Context, u *tablequeue.Unit) error {
	return s.detecting(ctx, []*tablequeue.Unit{u}, func() error { return s.take(ctx, u) })
}

func (s *store) take(ctx context.Context, u *tablequeue.Unit) error {
	b := s.batch(writing)
	b.Queue(s.table(u.Queue).take, u.Lease.ID, u.Lease.Seq)
	s.queue(b, s.groups([]*tablequeue.Unit{u})[0])
	if err := s.send(ctx, b); err != nil {
		return s.failed(fmt.Sprintf("take message %d of queue %q", u.Lease.Seq, u.Queue), err)
	}
	return nil
}
