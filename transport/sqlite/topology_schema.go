package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// migrations are the steps from an empty file to the tables of this version. Steps are only ever
// added. The table holdfast_schema has the number of steps that were taken; PRAGMA user_version is
// left to the user, whose tables share the file. Headers and body are last in a row: SQLite reads
// past them to reach a column behind.
var migrations = []string{`
	create table holdfast_queues (
		name text primary key
	) strict, without rowid;

	create table holdfast_messages (
		seq            integer primary key autoincrement,
		queue          text not null references holdfast_queues (name),
		visible_at     integer not null default (cast(unixepoch('subsec') * 1000000 as integer)),
		expires_at     integer,
		delivery_count integer not null default 0,
		lease_id       integer,
		lease_owner    text,
		last_error     text,
		id             text not null default (lower(hex(randomblob(16)))),
		headers        text not null,
		body           any
	) strict;

	create index holdfast_messages_due on holdfast_messages (queue, visible_at, seq);

	create table holdfast_subscriptions (
		type  text not null,
		queue text not null references holdfast_queues (name),
		primary key (type, queue)
	) strict, without rowid;
`}

// version returns the number of steps that were taken in the file.
func version(ctx context.Context, conn *sql.Conn) (seen int, err error) {
	var tables int
	err = conn.QueryRowContext(ctx, `select count(*) from sqlite_schema where name = 'holdfast_schema'`).Scan(&tables)
	if err != nil || tables == 0 {
		return 0, err
	}
	err = conn.QueryRowContext(ctx, `select version from holdfast_schema`).Scan(&seen)
	return seen, err
}

// migrate takes the missing steps. Concurrent migrations wait for each other, so that each looks
// again under the lock.
func migrate(ctx context.Context, conn *sql.Conn, steps []string) error {
	seen, err := version(ctx, conn)
	if err != nil || seen == len(steps) {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	if seen, err = version(ctx, conn); err != nil {
		return err
	}
	if seen > len(steps) {
		return fmt.Errorf("its tables have version %d and this program knows versions up to %d: "+
			"build the program with the newer Holdfast that wrote the file", seen, len(steps))
	}
	for i, step := range steps[seen:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("bring the tables to version %d: %w", seen+i+1, err)
		}
	}
	const note = `
		create table if not exists holdfast_schema (one integer primary key check (one = 1), version integer not null) strict;
		insert into holdfast_schema values (1, ?1) on conflict do update set version = ?1`
	if _, err := tx.ExecContext(ctx, note, len(steps)); err != nil {
		return err
	}
	return tx.Commit()
}
