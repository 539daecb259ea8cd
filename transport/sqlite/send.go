package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// lockWait is the longest wait of a write for the lock of the file.
const lockWait = 8 * time.Second

// Flush implements [tablequeue.Queues]. Prepared statements for single rows are as fast as
// statements for many: there are no round trips to save.
func (s *store) Flush(ctx context.Context, units []*tablequeue.Unit) error {
	// Shorter than the time of most callers, so that the error says what the write has waited for.
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	err := s.writer.do(ctx, durable, func(*sql.Tx) error {
		now := s.clock.now()
		for _, u := range units {
			if err := s.writer.write(u, now, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return failed(err, "write")
}

// write executes u, and calls within unless the lease is lost or the key is known.
func (w *writer) write(u *tablequeue.Unit, now int64, within func() error) error {
	u.Lost, u.Handled = false, false
	switch fresh, err := w.record(u, now); {
	case err != nil:
		return err
	case !fresh:
		u.Handled = true
		return nil
	}
	switch kept, err := w.settleRow(u, now); {
	case err != nil:
		return err
	case !kept:
		u.Lost = true
		return w.unrecord(u)
	}
	if within != nil {
		if err := within(); err != nil {
			return err
		}
	}
	return insertRows(w.prepared, u.Rows, now)
}

// insertRows inserts rows by the statements that prepared returns for a query.
func insertRows(prepared func(query string) (*sql.Stmt, error), rows []tablequeue.Row, now int64) error {
	for i := range rows {
		r := &rows[i]
		query := insertMessage
		if r.Named() {
			if err := vacate(prepared, r); err != nil {
				return fmt.Errorf("replace in queue %q: %w", r.Queue, err)
			}
			if query = insertNamed; r.Removes {
				continue
			}
		}
		insert, err := prepared(query)
		if err == nil {
			err = insertRow(insert, r, now)
		}
		if err != nil {
			return fmt.Errorf("insert into queue %q: %w", r.Queue, err)
		}
	}
	return nil
}

// settleRow settles the row of u, and reports whether the lease was still that of u.
func (w *writer) settleRow(u *tablequeue.Unit, now int64) (kept bool, err error) {
	var n int64
	switch u.Verb {
	case tablequeue.Send, tablequeue.Record:
		return true, nil
	case tablequeue.Delete:
		n, err = w.change(deleteLeased, u.Lease.Seq, u.Lease.ID)
	case tablequeue.Retry:
		n, err = w.change(retryLeased, later(now, u.After), u.Note, u.Lease.Seq, u.Lease.ID)
	case tablequeue.Release:
		n, err = w.change(releaseLeased, later(now, u.After), u.Lease.Seq, u.Lease.ID)
	default:
		return false, fmt.Errorf("unknown verb %d", u.Verb)
	}
	if err != nil {
		return false, fmt.Errorf("settle message %d of queue %q: %w", u.Lease.Seq, u.Queue, err)
	}
	return n > 0, nil
}

func insertRow(insert *sql.Stmt, r *tablequeue.Row, now int64) error {
	at := later(now, r.After)
	if !r.At.IsZero() {
		at = max(now, instant(r.At))
	}
	var expires, body any
	if r.TTL > 0 {
		expires = later(at, r.TTL)
	}
	if r.Body != nil {
		body = r.Body
	}
	args := []any{r.ID, string(r.Headers), body, at, expires, r.Queue}
	if r.Named() {
		args = append(args, r.Name[:])
	}
	res, err := insert.ExecContext(context.Background(), args...)
	if err == nil {
		var n int64
		if n, err = res.RowsAffected(); err == nil && n == 0 {
			err = transport.ErrNoQueue
		}
	}
	if err == nil && r.WantSeq {
		r.Seq, err = res.LastInsertId()
	}
	return err
}

// Cancel implements [tablequeue.Queues].
func (s *store) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	var n int64
	err := s.writer.do(ctx, durable, func(*sql.Tx) (err error) {
		n, err = s.writer.change(cancelUnclaimed, seq, queue)
		return err
	})
	return n > 0, failed(err, "cancel message %d of queue %q", seq, queue)
}
