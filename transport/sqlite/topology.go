package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// topology is the part of a store that creates, inspects and removes queues and subscriptions.
type topology struct{ *db }

// Exists implements [tablequeue.Topology].
func (t *topology) Exists(ctx context.Context, queue string) error {
	var one int
	err := unlessBusy(ctx, func() error {
		return t.read.QueryRowContext(ctx, `select count(*) from holdfast_queues where name = ?`, queue).Scan(&one)
	})
	if err == nil && one == 0 {
		err = transport.ErrNoQueue
	}
	return failed(err, "look for queue %q", queue)
}

// Install implements [tablequeue.Topology]. Open has created the tables.
func (t *topology) Install(ctx context.Context, plan transport.Plan) error {
	queues := make([]string, len(plan.Queues))
	for i, q := range plan.Queues {
		queues[i] = q.Name
	}
	const query = `insert into holdfast_queues (name) values (?) on conflict do nothing`
	err := t.each(ctx, "queue", queues, query)
	if err == nil && slices.ContainsFunc(plan.Queues, func(q transport.Queue) bool { return q.Timers }) {
		err = t.installTimers(ctx)
	}
	if err == nil {
		err = t.each(ctx, "inbox", plan.Inboxes, installInbox, t.clock.now())
	}
	if err == nil && len(plan.Records) > 0 {
		err = t.installRecords(ctx)
	}
	return failed(err, "install")
}

// Remove implements [tablequeue.Topology].
func (t *topology) Remove(ctx context.Context, queues []string) error {
	const query = `
		delete from holdfast_subscriptions where queue = ?1;
		delete from holdfast_messages where queue = ?1;
		delete from holdfast_queues where name = ?1;` + removeInbox
	return failed(t.each(ctx, "queue", queues, query), "remove queues")
}

// Subscribe implements [tablequeue.Subscriptions].
func (t *topology) Subscribe(ctx context.Context, queue string, types []string) error {
	if err := t.Exists(ctx, queue); err != nil {
		return err
	}
	const query = `insert into holdfast_subscriptions (type, queue) values (?, ?) on conflict do nothing`
	return failed(t.each(ctx, "type", types, query, queue), "change subscriptions of queue %q", queue)
}

// Unsubscribe implements [tablequeue.Subscriptions].
func (t *topology) Unsubscribe(ctx context.Context, queue string, types []string) error {
	const query = `delete from holdfast_subscriptions where type = ? and queue = ?`
	return failed(t.each(ctx, "type", types, query, queue), "change subscriptions of queue %q", queue)
}

// Subscriptions implements [tablequeue.Subscriptions].
func (t *topology) Subscriptions(ctx context.Context) (all []tablequeue.Subscription, err error) {
	err = t.query(ctx, func(rows *sql.Rows) error {
		var sub tablequeue.Subscription
		err := rows.Scan(&sub.Type, &sub.Queue)
		all = append(all, sub)
		return err
	}, `select type, queue from holdfast_subscriptions order by type, queue`)
	return all, failed(err, "read subscriptions")
}

// inspect reads every row, but not the bodies, which are last in a row.
const inspect = `
	select name,
		count(seq) filter (where visible_at <= ?1),
		count(seq) filter (where visible_at > ?1 and lease_id is not null),
		count(seq) filter (where visible_at > ?1 and lease_id is null),
		min(visible_at)
	from holdfast_queues left join holdfast_messages
		on queue = name and coalesce(expires_at > ?1, true)
	where name = ?2 group by name`

// Inspect implements [tablequeue.Topology].
func (t *topology) Inspect(
	ctx context.Context, queue string,
) (stats transport.QueueStats, err error) {
	now := t.clock.now()
	err = t.query(ctx, func(rows *sql.Rows) error {
		var oldest sql.Null[int64]
		err := rows.Scan(&stats.Name, &stats.Ready, &stats.Unsettled, &stats.Delayed, &oldest)
		if stats.Ready > 0 {
			stats.Oldest = time.Duration(now-oldest.V) * time.Microsecond
		}
		return err
	}, inspect, now, queue)
	if err == nil && stats.Name == "" {
		err = transport.ErrNoQueue
	}
	return stats, failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology].
func (t *topology) List(ctx context.Context) (names []string, err error) {
	err = t.query(ctx, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, `select name from holdfast_queues order by name`)
	return names, failed(err, "list queues")
}

// Missing implements [tablequeue.Topology].
func (t *topology) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing := make([]bool, len(queues))
	for i, q := range queues {
		err := t.Exists(ctx, q)
		if missing[i] = errors.Is(err, transport.ErrNoQueue); err != nil && !missing[i] {
			return nil, err
		}
	}
	return missing, nil
}

// namedTables adds what messages with names need. It is no step of the migrations: programs of the
// version before, which refuse a file with further steps, can use a file with this column: no
// statement of theirs has another table with one of that name. The record of a message without a
// name says so before its headers and body, which are not read for the index.
const namedTables = `
	alter table holdfast_messages add column timer blob;
	create unique index holdfast_messages_timer on holdfast_messages (queue, timer) where timer is not null`

// installTimers adds what messages with names need where it is missing.
func (t *topology) installTimers(ctx context.Context) error {
	return t.writer.do(ctx, durable, func(tx *sql.Tx) error {
		var found int
		if err := tx.QueryRow(namedExists).Scan(&found); err != nil || found > 0 {
			return err
		}
		_, err := tx.Exec(namedTables)
		return err
	})
}

// installRecords creates the table of records where it is missing. An inbox with its name has the
// time of the last removal of ended records.
func (t *topology) installRecords(ctx context.Context) error {
	err := t.writer.do(ctx, durable, func(tx *sql.Tx) error {
		_, err := tx.Exec(recordTables)
		return err
	})
	if err != nil {
		return err
	}
	return t.each(ctx, "table of records", []string{dialect.RecordTable}, installInbox, t.clock.now())
}

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
