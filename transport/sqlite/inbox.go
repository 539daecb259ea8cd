package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/transport"
)

// exists fails with [transport.ErrNoQueue] where a query has counted nothing.
func exists(row *sql.Row) error {
	var n int
	if err := row.Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return transport.ErrNoQueue
	}
	return nil
}

// inboxStore is the part of a store with the ids of handled messages.
type inboxStore struct{ *db }

// FindHandled implements [tablequeue.Inboxes]. It ignores the end of ctx, as a reader hardly ever
// waits.
func (in *inboxStore) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (states []transport.HandledState, err error) {
	wanted := make([]string, len(keys))
	for i := range keys {
		wanted[i] = hex.EncodeToString(keys[i].ID[:])
	}
	list, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	err = unlessBusy(ctx, func() error {
		states, err = in.findKeys(ctx, inbox, keys, string(list))
		return err
	})
	return states, failed(err, "look for handled messages in inbox %q", inbox)
}

func (in *inboxStore) findKeys(
	ctx context.Context, inbox string, keys []transport.HandledKey, list string,
) ([]transport.HandledState, error) {
	rows, err := in.find.QueryContext(context.WithoutCancel(ctx), list, inbox)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	states, seen := make([]transport.HandledState, len(keys)), 0
	for ; rows.Next(); seen++ {
		var at int
		var sum sql.Null[int64]
		if err := rows.Scan(&at, &sum); err != nil {
			return nil, err
		}
		switch {
		case !sum.Valid:
		case sum.V == int64(keys[at].Sum):
			states[at] = transport.Handled
		default:
			states[at] = transport.HandledOther
		}
	}
	if err := rows.Err(); err == nil && seen < len(keys) {
		return nil, transport.ErrNoQueue
	}
	return states, rows.Err()
}

// DueForForgetting implements [tablequeue.Inboxes].
func (in *inboxStore) DueForForgetting(
	ctx context.Context, inbox string, pause time.Duration,
) (bool, error) {
	now := in.clock.wall()
	n, err := in.forget(ctx, markForgetting, micros(now), inbox, micros(now.Add(-pause)))
	return n > 0, failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes].
func (in *inboxStore) Forget(
	ctx context.Context, inbox string, age time.Duration, limit int,
) (int64, error) {
	n, err := in.forget(ctx, forgetOld, inbox, micros(in.clock.wall().Add(-age)), limit)
	return n, failed(err, "remove old ids from inbox %q", inbox)
}

// forget executes a statement of the removal of old keys. It does not wait for the disk: a key that
// comes back after a power failure is removed again.
func (in *inboxStore) forget(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = in.writer.do(ctx, lease, func(*sql.Tx) (err error) {
		n, err = in.writer.change(query, args...)
		return err
	})
	return n, err
}

// ForgetKeys implements [tablequeue.Inboxes].
func (in *inboxStore) ForgetKeys(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (removed int64, err error) {
	err = in.writer.do(ctx, durable, func(*sql.Tx) error {
		removed = 0
		for i := range keys {
			n, err := in.writer.change(forgetKey, inbox, keys[i].ID[:])
			if err != nil {
				return err
			}
			removed += n
		}
		if removed > 0 {
			return nil
		}
		return exists(in.writer.statements[inboxExists].QueryRowContext(context.Background(), inbox))
	})
	return removed, failed(err, "remove ids from inbox %q", inbox)
}

// keySize is the size in bytes of a key in the file with its index, as it was measured.
const keySize = 80

// InspectInbox implements [tablequeue.Inboxes]. It reads an index of all keys, a million in about
// 70 ms.
func (in *inboxStore) InspectInbox(
	ctx context.Context, inbox string,
) (transport.InboxStats, error) {
	stats, now := transport.InboxStats{Name: inbox}, in.clock.wall()
	var oldest sql.Null[int64]
	err := unlessBusy(ctx, func() error {
		return in.read.QueryRowContext(ctx, inspectInbox, inbox, micros(now.Add(-time.Hour))).Scan(&stats.Rows, &stats.LastHour, &oldest)
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = transport.ErrNoQueue
	}
	stats.Bytes = stats.Rows * keySize
	if oldest.Valid {
		stats.Oldest = time.Duration(max(0, micros(now)-oldest.V)) * time.Microsecond
	}
	return stats, failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes]. The table of all inboxes is of this version, as the
// file is.
func (in *inboxStore) InboxState(ctx context.Context, inbox string) error {
	err := unlessBusy(ctx, func() error { return exists(in.read.QueryRowContext(ctx, inboxExists, inbox)) })
	return failed(err, "look for inbox %q", inbox)
}

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
