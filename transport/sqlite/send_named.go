package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// namedTables adds what messages with names need. It is no step of the migrations: programs of the
// version before, which refuse a file with further steps, can use a file with this column: no
// statement of theirs has another table with one of that name. The record of a message without a
// name says so before its headers and body, which are not read for the index.
const namedTables = `
	alter table holdfast_messages add column timer blob;
	create unique index holdfast_messages_timer on holdfast_messages (queue, timer) where timer is not null`

const (
	namedExists = `select count(*) from sqlite_schema where name = 'holdfast_messages_timer'`

	deleteNamed = `delete from main.holdfast_messages where queue = ?1 and timer = ?2`
	queueExists = `select count(*) from main.holdfast_queues where name = ?1`
	insertNamed = `
		insert into main.holdfast_messages (queue, id, headers, body, visible_at, expires_at, timer)
		select name, ?1, ?2, ?3, ?4, ?5, ?7 from main.holdfast_queues where name = ?6`
)

// installTimers adds what messages with names need where it is missing.
func (s *store) installTimers(ctx context.Context) error {
	return s.writer.do(ctx, durable, func(tx *sql.Tx) error {
		var found int
		if err := tx.QueryRow(namedExists).Scan(&found); err != nil || found > 0 {
			return err
		}
		_, err := tx.Exec(namedTables)
		return err
	})
}

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
