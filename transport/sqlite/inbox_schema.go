package sqlite

import (
	"context"
	"database/sql"
)

// inboxTables are the tables of all inboxes. They are no step of the migrations: programs of the
// version before, which refuse a file with further steps, can use a file with these tables. An
// inbox is a row of holdfast_inboxes.
const inboxTables = `
	create table if not exists holdfast_inboxes (
		inbox        integer primary key,
		name         text not null unique,
		forgotten_at integer not null
	) strict;

	create table if not exists holdfast_handled (
		inbox integer not null references holdfast_inboxes (inbox),
		key   blob not null,
		at    integer not null,
		sum   integer not null,
		primary key (inbox, key)
	) strict, without rowid;

	create index if not exists holdfast_handled_at on holdfast_handled (inbox, at)`

// createInboxTables creates the tables of inboxes where they are missing.
func createInboxTables(ctx context.Context, conn *sql.Conn) error {
	var found int
	err := conn.QueryRowContext(ctx, `select count(*) from sqlite_schema where name = 'holdfast_handled_at'`).Scan(&found)
	if err != nil || found > 0 {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	if _, err := tx.ExecContext(ctx, inboxTables); err != nil {
		return err
	}
	return tx.Commit()
}

const (
	installInbox = `insert into holdfast_inboxes (name, forgotten_at) values (?1, ?2) on conflict do nothing`
	removeInbox  = `
		delete from holdfast_handled where inbox = (select inbox from holdfast_inboxes where name = ?1);
		delete from holdfast_inboxes where name = ?1`
	inboxExists = `select count(*) from holdfast_inboxes where name = ?`

	recordKey = `
		insert into holdfast_handled (inbox, key, at, sum)
		select inbox, ?, ?, ? from holdfast_inboxes where name = ? on conflict do nothing`
	forgetKey = `delete from holdfast_handled where inbox = (select inbox from holdfast_inboxes where name = ?) and key = ?`

	// findKeys returns a row for each key of a list, and none where there is no such inbox.
	findKeys = `
		select list.key, handled.sum
		from holdfast_inboxes as inboxes cross join json_each(?) as list
		left join holdfast_handled as handled on handled.inbox = inboxes.inbox and handled.key = unhex(list.value)
		where inboxes.name = ?`

	// A clock that was ahead delays no removal.
	markForgetting = `update holdfast_inboxes set forgotten_at = ?1 where name = ?2 and (forgotten_at <= ?3 or forgotten_at > ?1)`
	forgetOld      = `
		delete from holdfast_handled where (inbox, key) in (
			select inbox, key from holdfast_handled
			where inbox = (select inbox from holdfast_inboxes where name = ?) and at <= ?
			order by at limit ?)`

	inspectInbox = `
		select
			(select count(*) from holdfast_handled as h where h.inbox = i.inbox),
			(select count(*) from holdfast_handled as h where h.inbox = i.inbox and at > ?2),
			(select at from holdfast_handled as h where h.inbox = i.inbox order by at limit 1)
		from holdfast_inboxes as i where name = ?1`
)
