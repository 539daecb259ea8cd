package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// statements are the writer's statements, prepared on its connection.
type statements struct {
	savepoint, rollbackTo, release *sql.Stmt

	claim, claimFit        *sql.Stmt
	size, next             *sql.Stmt
	insert, delete         *sql.Stmt
	retry, giveBack        *sql.Stmt
	renew, abandon, cancel *sql.Stmt

	all []*sql.Stmt
}

const (
	claimMessages = `
		update holdfast_messages
		set delivery_count = delivery_count + 1, visible_at = ?, lease_id = ?, lease_owner = ?
		where seq in (%s)
		returning seq, id, headers, body, delivery_count, expires_at`
	sizes = `
		select seq, visible_at, octet_length(headers) + coalesce(octet_length(body), 0) as size
		from holdfast_messages
		where queue = ? and visible_at <= ?
		order by visible_at, seq limit ?`
	firstVisible  = `select min(visible_at) from holdfast_messages where queue = ?`
	insertMessage = `
		insert into main.holdfast_messages (queue, id, headers, body, visible_at, expires_at)
		select name, ?, ?, ?, ?, ? from main.holdfast_queues where name = ?`
)

// prepare is called before the writer starts.
func (w *writer) prepare(ctx context.Context) error {
	for _, s := range []struct {
		into  **sql.Stmt
		query string
	}{
		{&w.savepoint, `savepoint holdfast`},
		{&w.rollbackTo, `rollback to holdfast`},
		{&w.release, `release holdfast`},
		{&w.claim, fmt.Sprintf(claimMessages, `
			select seq from holdfast_messages
			where queue = ? and visible_at <= ?
			order by visible_at, seq limit ?`)},
		// The first messages that fit into a number of bytes, but at least one.
		{&w.claimFit, fmt.Sprintf(claimMessages, `
			select seq from (
				select seq, size, sum(size) over (order by visible_at, seq rows unbounded preceding) as total from (`+sizes+`))
			where total <= ? or total = size`)},
		{&w.size, `select coalesce(sum(size), 0) from (` + sizes + `)`},
		{&w.next, firstVisible},
		{&w.insert, insertMessage},
		{&w.delete, `
			delete from holdfast_messages where seq = ? and lease_id = ?`},
		{&w.retry, `
			update holdfast_messages
			set visible_at = ?, lease_id = null, lease_owner = null, last_error = coalesce(nullif(?, ''), last_error)
			where seq = ? and lease_id = ?`},
		{&w.giveBack, `
			update holdfast_messages
			set visible_at = ?, lease_id = null, lease_owner = null,
				delivery_count = delivery_count - 1
			where seq = ? and lease_id = ?`},
		{&w.renew, `
			update holdfast_messages set visible_at = ? where seq = ? and lease_id = ?`},
		{&w.abandon, `
			update holdfast_messages
			set visible_at = ?, lease_id = null, lease_owner = null
			where queue = ? and visible_at > ? and visible_at <= ? and lease_owner = ?`},
		{&w.cancel, `
			delete from holdfast_messages where seq = ? and queue = ? and delivery_count = 0`},
	} {
		stmt, err := w.conn.PrepareContext(ctx, s.query)
		if err != nil {
			return err
		}
		*s.into = stmt
		w.all = append(w.all, stmt)
	}
	return nil
}

// finalize closes the statements and the connection, which an open statement would keep open.
func (w *writer) finalize() error {
	var errs []error
	for _, s := range w.all {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// change executes stmt, which cannot be cancelled, and returns the number of changed rows.
func change(stmt *sql.Stmt, args ...any) (int64, error) {
	res, err := stmt.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
