package sqlite

import (
	"context"
	"database/sql"
	"errors"
)

// The writer's statements.
const (
	savepoint  = `savepoint holdfast`
	rollbackTo = `rollback to holdfast`
	release    = `release holdfast`

	firstVisible  = `select min(visible_at) from holdfast_messages where queue = ?`
	insertMessage = `
		insert into main.holdfast_messages (queue, id, headers, body, visible_at, expires_at)
		select name, ?, ?, ?, ?, ? from main.holdfast_queues where name = ?`

	claimStart = `
		update holdfast_messages
		set delivery_count = delivery_count + 1, visible_at = ?, lease_id = ?, lease_owner = ?
		where seq in (`
	claimEnd = `) returning seq, id, headers, body, delivery_count, expires_at`
	claimAny = claimStart + `
			select seq from holdfast_messages
			where queue = ? and visible_at <= ?
			order by visible_at, seq limit ?` + claimEnd
	sizes = `
		select seq, visible_at, octet_length(headers) + coalesce(octet_length(body), 0) as size
		from holdfast_messages
		where queue = ? and visible_at <= ?
		order by visible_at, seq limit ?`
	sizeOfAny = `select coalesce(sum(size), 0) from (` + sizes + `)`
	// claimFitting claims the first messages that fit into a number of bytes, but at least one.
	claimFitting = claimStart + `
			select seq from (
				select seq, size, sum(size) over (order by visible_at, seq rows unbounded preceding) as total from (` + sizes + `))
			where total <= ? or total = size` + claimEnd

	deleteLeased = `delete from holdfast_messages where seq = ? and lease_id = ?`
	retryLeased  = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null, last_error = coalesce(nullif(?, ''), last_error)
		where seq = ? and lease_id = ?`
	releaseLeased = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null, delivery_count = delivery_count - 1
		where seq = ? and lease_id = ?`
	hastenDeferred = `
		update holdfast_messages
		set visible_at = min(?, (select min(visible_at) from holdfast_messages where queue = ?))
		where seq = ? and queue = ? and lease_id is null and visible_at > ?`
	renewLease    = `update holdfast_messages set visible_at = ? where seq = ? and lease_id = ?`
	abandonLeases = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null
		where queue = ? and visible_at > ? and visible_at <= ? and lease_owner = ?`
	cancelUnclaimed = `delete from holdfast_messages where seq = ? and queue = ? and delivery_count = 0`
)

// prepare prepares the statements that are not prepared yet. It is called before the writer starts.
func (w *writer) prepare(ctx context.Context) (err error) {
	for _, query := range []string{
		savepoint, rollbackTo, release, firstVisible, insertMessage, claimAny, sizeOfAny, claimFitting,
		deleteLeased, retryLeased, releaseLeased, renewLease, abandonLeases, cancelUnclaimed, hastenDeferred,
		recordKey, forgetKey, inboxExists, markForgetting, forgetOld,
	} {
		if _, err := w.preparing(ctx, query); err != nil {
			return err
		}
	}
	w.clean, err = w.state()
	return err
}

// prepared returns the statement of a query, which it prepares at the first call. Only the writer
// calls it.
func (w *writer) prepared(query string) (*sql.Stmt, error) {
	return w.preparing(context.Background(), query)
}

func (w *writer) preparing(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt := w.statements[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := w.conn.PrepareContext(ctx, query)
	if err == nil {
		w.statements[query] = stmt
	}
	return stmt, err
}

// finalize closes the statements and the connection, which an open statement would keep open.
func (w *writer) finalize() error {
	if w.conn == nil {
		return nil
	}
	var errs []error
	for _, s := range w.statements {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// change executes a statement, which cannot be cancelled, and returns the number of changed rows.
func (w *writer) change(query string, args ...any) (int64, error) {
	res, err := w.statements[query].ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
