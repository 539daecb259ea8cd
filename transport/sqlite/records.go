package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.RecordTx = (*deferredTx)(nil)

// A record is read without a lock, which would block all other writers, and compared when the
// transaction is committed. The sequence number tells a record from another one with the same id
// and version that was created after the first was removed.

// recordTables are no step of the migrations: programs of the version before, which refuse a file
// with further steps, can use a file with these tables. Names are blobs, which are compared
// bytewise and may contain NUL.
const recordTables = `
	create table if not exists holdfast_state (
		seq       integer primary key autoincrement,
		id        blob not null unique,
		kind      blob not null,
		key       blob not null,
		version   integer not null,
		status    integer not null,
		started   integer not null,
		changed   integer not null,
		forget_at integer,
		meta      text,
		state     text
	) strict;

	create index if not exists holdfast_state_key on holdfast_state (kind, key);
	create index if not exists holdfast_state_forget_at on holdfast_state (forget_at) where forget_at is not null`

const (
	recordColumns = `seq, id, kind, key, version, status, started, changed, meta, state`

	oneRecord   = `select ` + recordColumns + ` from holdfast_state where id = ?`
	someRecords = `select ` + recordColumns + ` from holdfast_state where kind = ? and key > ? order by key limit ?`
	countRecord = `
		select count(*) filter (where status = 1), count(*) filter (where status = 2), min(changed) filter (where status = 1)
		from holdfast_state where kind = ?`
	recordTable = `select count(*) from holdfast_state where false`

	insertRecord = `
		insert into holdfast_state (id, kind, key, version, status, started, changed, forget_at, meta, state)
		values (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9) on conflict (id) do nothing`
	updateRecord = `
		update holdfast_state set version = ?4, status = ?5, changed = ?6, forget_at = ?7, meta = ?8, state = ?9
		where id = ?1 and version = ?2 and seq = ?3`
	deleteRecord  = `delete from holdfast_state where id = ?1 and version = ?2 and seq = ?3`
	sameRecord    = `select count(*) from holdfast_state where id = ?1 and version = ?2 and seq = ?3`
	forgetRecords = `
		delete from holdfast_state where seq in (
			select seq from holdfast_state where forget_at <= ?1 order by forget_at limit ?2)`
)

// errRecordChanged is the error of a commit with a record that another transaction has changed
// meanwhile.
var errRecordChanged = errors.New("another transaction has changed the record")

// LoadRecord implements [tablequeue.RecordTx]. It takes no lock: Complete compares.
func (t *deferredTx) LoadRecord(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (transport.Record, error) {
	r, seq, err := t.of.records.record(ctx, id)
	if errors.Is(err, transport.ErrNoRecord) && create != nil {
		r, err = transport.Record{ID: id, Name: *create}, nil
	}
	if err != nil {
		return transport.Record{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return transport.Record{}, errTxOver
	}
	if t.loaded == nil {
		t.loaded = map[transport.RecordID]int64{}
	}
	t.loaded[id] = seq
	return r, nil
}

// writeRecords writes the changes of the records that a transaction has loaded.
func (s *session) writeRecords(
	changes []*stateset.Change, loaded map[transport.RecordID]int64, now int64,
) error {
	for _, c := range changes {
		n, err := s.writeRecord(c, loaded[c.Record.ID], now)
		if err == nil && n == 0 {
			err = errRecordChanged
		}
		if err != nil {
			return fmt.Errorf("record %s: %w", uuid.Text(c.Record.ID), withoutTable(err))
		}
	}
	return nil
}

// writeRecord writes one change. It returns 0 if the record is not as it was loaded.
func (s *session) writeRecord(c *stateset.Change, seq, now int64) (n int64, err error) {
	r := &c.Record
	var forget any
	if r.Status == transport.RecordEnded {
		forget = later(now, r.Keep)
	}
	switch {
	case c.Verb == stateset.Store && c.Loaded == 0:
		return s.execute(insertRecord, r.ID[:], []byte(r.Name.Kind), []byte(r.Name.Key), r.Version, int64(r.Status), now, forget,
			jsonText(r.Meta), jsonText(r.State))
	case c.Loaded == 0: // it was never stored
		return 1, nil
	case c.Verb == stateset.Store:
		return s.execute(updateRecord, r.ID[:], c.Loaded, seq, r.Version, int64(r.Status), now, forget, jsonText(r.Meta), jsonText(r.State))
	case c.Verb == stateset.Remove:
		return s.execute(deleteRecord, r.ID[:], c.Loaded, seq)
	}
	same, err := s.prepared(sameRecord)
	if err == nil {
		err = same.QueryRowContext(context.Background(), r.ID[:], c.Loaded, seq).Scan(&n)
	}
	return n, err
}

// jsonText returns JSON as text, and nil as null.
func jsonText(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// withoutTable returns [transport.ErrNoQueue] for the error of a statement whose table is missing.
func withoutTable(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such table: holdfast_state") {
		return fmt.Errorf("table of records: %w", transport.ErrNoQueue)
	}
	return err
}

// recordStore is the part of a store with the table of records.
type recordStore struct {
	*db
	inboxes *inboxStore
}

// record returns a record with its sequence number, or [transport.ErrNoRecord].
func (rs *recordStore) record(
	ctx context.Context, id transport.RecordID,
) (r transport.Record, seq int64, err error) {
	found := false
	err = rs.query(ctx, func(rows *sql.Rows) (err error) {
		found = true
		r, seq, err = scanRecord(rows)
		return err
	}, oneRecord, id[:])
	switch err = withoutTable(err); {
	case err != nil:
		return r, 0, failed(err, "load record %s", uuid.Text(id))
	case !found:
		return r, 0, transport.ErrNoRecord
	}
	return r, seq, nil
}

// scanRecord reads a row of recordColumns.
func scanRecord(rows *sql.Rows) (r transport.Record, seq int64, err error) {
	var id, kind, key []byte
	var status, started, changed int64
	if err := rows.Scan(&seq, &id, &kind, &key, &r.Version, &status, &started, &changed, &r.Meta, &r.State); err != nil {
		return r, 0, err
	}
	copy(r.ID[:], id)
	r.Name, r.Status = transport.RecordName{Kind: string(kind), Key: string(key)}, transport.RecordStatus(status)
	r.Started, r.Changed = time.UnixMicro(started), time.UnixMicro(changed)
	return r, seq, nil
}

// Record implements [tablequeue.Records].
func (rs *recordStore) Record(
	ctx context.Context, id transport.RecordID,
) (transport.Record, error) {
	r, _, err := rs.record(ctx, id)
	return r, err
}

// Records implements [tablequeue.Records].
func (rs *recordStore) Records(
	ctx context.Context, p transport.RecordPage,
) (page []transport.Record, err error) {
	err = rs.query(ctx, func(rows *sql.Rows) error {
		r, _, err := scanRecord(rows)
		page = append(page, r)
		return err
	}, someRecords, []byte(p.Kind), []byte(p.After), p.Limit)
	return page, failed(withoutTable(err), "read records")
}

// InspectRecords implements [tablequeue.Records]. It reads all records of the kind.
func (rs *recordStore) InspectRecords(
	ctx context.Context, kind string,
) (stats transport.RecordStats, err error) {
	var oldest sql.Null[int64]
	err = unlessBusy(ctx, func() error {
		return rs.read.QueryRowContext(ctx, countRecord, []byte(kind)).Scan(&stats.Active, &stats.Ended, &oldest)
	})
	if oldest.Valid {
		stats.Oldest = time.Duration(max(0, rs.clock.now()-oldest.V)) * time.Microsecond
	}
	return stats, failed(withoutTable(err), "inspect records")
}

// RecordsState implements [tablequeue.Records].
func (rs *recordStore) RecordsState(ctx context.Context) error {
	var n int
	err := unlessBusy(ctx, func() error { return rs.read.QueryRowContext(ctx, recordTable).Scan(&n) })
	return failed(withoutTable(err), "look for the table of records")
}

// DueForForgettingRecords implements [tablequeue.Records].
func (rs *recordStore) DueForForgettingRecords(
	ctx context.Context, pause time.Duration,
) (bool, error) {
	return rs.inboxes.DueForForgetting(ctx, dialect.RecordTable, pause)
}

// ForgetRecords implements [tablequeue.Records].
func (rs *recordStore) ForgetRecords(ctx context.Context, limit int) (n int64, err error) {
	err = rs.writer.do(ctx, lease, func(*sql.Tx) (err error) {
		n, err = rs.writer.execute(forgetRecords, rs.clock.now(), limit)
		return err
	})
	return n, failed(withoutTable(err), "remove ended records")
}
