package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// browser is the part of a store with which tools list rows and remove them.
type browser struct{ *db }

// Last implements [tablequeue.Browsing].
func (br *browser) Last(ctx context.Context, queue string) (last int64, err error) {
	err = unlessBusy(ctx, func() error {
		return br.read.QueryRowContext(ctx,
			`select coalesce(max(seq), 0) from holdfast_messages where queue = ?`, queue).Scan(&last)
	})
	return last, failed(err, "look at queue %q", queue)
}

var errPageFull = errors.New("enough bytes for a page")

// Browse implements [tablequeue.Browsing]. It reads by the key: by the index each page would read
// and sort the whole queue.
func (br *browser) Browse(
	ctx context.Context, p tablequeue.Page,
) (found []tablequeue.Claimed, err error) {
	size := 0
	err = br.query(ctx, func(rows *sql.Rows) error {
		var r tablequeue.Claimed
		if err := rows.Scan(&r.Seq, &r.ID, &r.Headers, &r.Body, &r.Count); err != nil {
			return err
		}
		found = append(found, r)
		if size += len(r.Body); size > tablequeue.MaxPage {
			return errPageFull
		}
		return nil
	}, `select seq, id, headers, body, delivery_count from holdfast_messages not indexed
		where queue = ? and seq > ? and seq <= ? and coalesce(expires_at > ?, true)
		order by seq limit ?`, p.Queue, p.After, p.Last, br.clock.now(), p.Limit)
	if err != nil && !errors.Is(err, errPageFull) {
		return nil, fmt.Errorf("sqlite: look at queue %q: %w", p.Queue, explain(err))
	}
	return found, nil
}

// Purge implements [tablequeue.Browsing].
func (br *browser) Purge(ctx context.Context, queue string) (n int64, err error) {
	err = br.writer.do(ctx, durable, func(tx *sql.Tx) error {
		res, err := tx.Exec(`delete from holdfast_messages where queue = ? and visible_at <= ?`, queue, br.clock.now())
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	return n, failed(err, "purge queue %q", queue)
}

const leaseRow = `update holdfast_messages set lease_id = ? where queue = ? and seq = ? and visible_at <= ?`

// Take implements [tablequeue.Browsing].
func (br *browser) Take(ctx context.Context, u *tablequeue.Unit) error {
	err := br.writer.do(ctx, durable, func(tx *sql.Tx) error {
		now := br.clock.now()
		if _, err := tx.Exec(leaseRow, u.Lease.ID, u.Queue, u.Lease.Seq, now); err != nil {
			return err
		}
		return br.writer.write(u, now, nil)
	})
	return failed(err, "take message %d of queue %q", u.Lease.Seq, u.Queue)
}
