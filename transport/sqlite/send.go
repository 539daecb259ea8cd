package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// lockWait is the longest wait of a write for the lock of the file.
const lockWait = 8 * time.Second

// flusher is the part of a store that executes units, and sends in transactions of callers.
type flusher struct{ *db }

// Flush implements [tablequeue.Queues]. Prepared statements for single rows are as fast as
// statements for many: there are no round trips to save.
func (f *flusher) Flush(ctx context.Context, units []*tablequeue.Unit) error {
	// Shorter than the time of most callers, so that the error says what the write has waited for.
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	err := f.writer.do(ctx, durable, func(*sql.Tx) error {
		now := f.clock.now()
		for _, u := range units {
			if err := f.writer.write(u, now, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return failed(err, "write")
}

// Cancel implements [tablequeue.Queues].
func (f *flusher) Cancel(ctx context.Context, queue string, seq int64) (bool, error) {
	var n int64
	err := f.writer.do(ctx, durable, func(*sql.Tx) (err error) {
		n, err = f.writer.change(cancelUnclaimed, seq, queue)
		return err
	})
	return n > 0, failed(err, "cancel message %d of queue %q", seq, queue)
}

// InsertIn implements [tablequeue.Queues]. Listeners notice the commit by themselves.
func (f *flusher) InsertIn(ctx context.Context, tx any, rows []tablequeue.Row) error {
	theirs, ok := tx.(*sql.Tx)
	if !ok || theirs == nil {
		return fmt.Errorf("sqlite: send in a transaction: it is a %T: want a *sql.Tx", tx)
	}
	err := f.sameFile(ctx, theirs)
	if err == nil && len(rows) > 0 {
		err = insertIn(ctx, theirs, rows, f.clock.now())
	}
	if isBusy(err) {
		err = fmt.Errorf("the file is locked by another transaction: "+
			"open it with _txlock=immediate and a _busy_timeout: %w", err)
	}
	return failed(err, "send in a transaction")
}

func (f *flusher) sameFile(ctx context.Context, tx *sql.Tx) error {
	var path string
	err := tx.QueryRowContext(ctx, `select file from pragma_database_list where name = 'main'`).Scan(&path)
	if err != nil {
		return ofSQLite(ctx, err)
	}
	theirs, err := os.Stat(path)
	if err == nil && os.SameFile(theirs, f.file.info) {
		return nil
	}
	return fmt.Errorf("it is one of file %q and the queues are in %q: begin it there", path, f.path)
}

// ofSQLite adds to an error that is not one of SQLite that the transaction may be one of another
// database system.
func ofSQLite(ctx context.Context, err error) error {
	if primary(err) != 0 || ctx.Err() != nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) {
		return err
	}
	return fmt.Errorf("the *sql.Tx has to be one of SQLite: %w", err)
}

// insertIn leaves tx as it was when it fails. Its statements ignore the end of ctx: SQLite would
// end the transaction.
func insertIn(ctx context.Context, tx *sql.Tx, rows []tablequeue.Row, now int64) error {
	ctx = context.WithoutCancel(ctx)
	execute := func(query string) error {
		_, err := tx.ExecContext(ctx, query)
		return err
	}
	_, err := guard(execute, func() error {
		statements := map[string]*sql.Stmt{}
		defer func() {
			for _, stmt := range statements {
				_ = stmt.Close()
			}
		}()
		prepared := func(query string) (*sql.Stmt, error) {
			if stmt := statements[query]; stmt != nil {
				return stmt, nil
			}
			stmt, err := tx.PrepareContext(ctx, query)
			if err == nil {
				statements[query] = stmt
			}
			return stmt, err
		}
		return insertRows(prepared, rows, now)
	})
	return err
}

// write executes u, and calls within unless the lease is lost or the key is known.
func (s *session) write(u *tablequeue.Unit, now int64, within func() error) error {
	u.Lost, u.Handled = false, false
	switch fresh, err := s.record(u, now); {
	case err != nil:
		return err
	case !fresh:
		u.Handled = true
		return nil
	}
	switch kept, err := s.settleRow(u, now); {
	case err != nil:
		return err
	case !kept:
		u.Lost = true
		return s.unrecord(u)
	}
	if within != nil {
		if err := within(); err != nil {
			return err
		}
	}
	return insertRows(s.prepared, u.Rows, now)
}

// record records the key of u, if it has one, and reports whether the key is new.
func (s *session) record(u *tablequeue.Unit, now int64) (fresh bool, err error) {
	if u.Key == nil {
		return true, nil
	}
	n, err := s.change(recordKey, u.Key.ID[:], now, int64(u.Key.Sum), u.Inbox)
	if err == nil && n == 0 {
		err = exists(s.statements[inboxExists].QueryRowContext(context.Background(), u.Inbox))
	}
	if err != nil {
		return false, fmt.Errorf("record in inbox %q: %w", u.Inbox, err)
	}
	return n > 0, nil
}

// unrecord undoes record of a new key.
func (s *session) unrecord(u *tablequeue.Unit) error {
	if u.Key == nil {
		return nil
	}
	_, err := s.change(forgetKey, u.Inbox, u.Key.ID[:])
	return err
}

// insertRows inserts rows by the statements that prepared returns for a query.
func insertRows(
	prepared func(query string) (*sql.Stmt, error), rows []tablequeue.Row, now int64,
) error {
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
func (s *session) settleRow(u *tablequeue.Unit, now int64) (kept bool, err error) {
	var n int64
	switch u.Verb {
	case tablequeue.Send, tablequeue.Record:
		return true, nil
	case tablequeue.Delete:
		n, err = s.change(deleteLeased, u.Lease.Seq, u.Lease.ID)
	case tablequeue.Retry:
		n, err = s.change(retryLeased, later(now, u.After), u.Note, u.Lease.Seq, u.Lease.ID)
	case tablequeue.Release:
		n, err = s.change(releaseLeased, later(now, u.After), u.Lease.Seq, u.Lease.ID)
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

const (
	namedExists = `select count(*) from sqlite_schema where name = 'holdfast_messages_timer'`

	deleteNamed = `delete from main.holdfast_messages where queue = ?1 and timer = ?2`
	queueExists = `select count(*) from main.holdfast_queues where name = ?1`
	insertNamed = `
		insert into main.holdfast_messages (queue, id, headers, body, visible_at, expires_at, timer)
		select name, ?1, ?2, ?3, ?4, ?5, ?7 from main.holdfast_queues where name = ?6`
)

// vacate deletes the row with the name of r, so that there is room for r.
func vacate(prepared func(query string) (*sql.Stmt, error), r *tablequeue.Row) error {
	remove, err := prepared(deleteNamed)
	if err != nil {
		if strings.Contains(err.Error(), "no such column: timer") {
			err = fmt.Errorf("%w: %w", tablequeue.ErrNoTimers, err)
		}
		return err
	}
	res, err := remove.ExecContext(context.Background(), r.Queue, r.Name[:])
	if err != nil || !r.Removes {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	exists, err := prepared(queueExists)
	if err != nil {
		return err
	}
	var found int
	if err := exists.QueryRowContext(context.Background(), r.Queue).Scan(&found); err == nil && found == 0 {
		return transport.ErrNoQueue
	}
	return err
}
