package postgres

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/stateset"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

var _ tablequeue.RecordTx = (*handlerTx)(nil)

// recordColumns are the columns of a record as scanRecord reads them.
const recordColumns = `id::text, kind, key, version, status, state::text, meta::text,
	(extract(epoch FROM started) * 1000000)::bigint, (extract(epoch FROM changed) * 1000000)::bigint`

// The statements about records in a handler's transaction are executed with settings of their own,
// which the last one of a batch undoes: a handler's own statements wait for locks as the handler
// says. See largeTable for the planner's.
var (
	recordSettings = `SELECT set_config('holdfast.lock_timeout', current_setting('lock_timeout'), true),
	set_config('holdfast.enable_seqscan', current_setting('enable_seqscan'), true),
	set_config('lock_timeout', '` + strconv.FormatInt(tablequeue.RecordWait.Milliseconds(), 10) + `', true),
	set_config('enable_seqscan', 'off', true)`
	handlersSettings = `SELECT set_config('lock_timeout', current_setting('holdfast.lock_timeout'), true),
	set_config('enable_seqscan', current_setting('holdfast.enable_seqscan'), true)`
)

// A role that the handlers have taken may have no rights on the tables of the engine. These
// statements are around those of the engine then, the first two in a round trip of their own: the
// server needs rights already to prepare a statement.
const (
	keepRole     = `SELECT set_config('holdfast.role', current_setting('role'), true)`
	sessionRole  = `SET LOCAL role TO DEFAULT`
	handlersRole = `SELECT set_config('role', current_setting('holdfast.role'), true)`
)

// recordStore is the part of a store with the table of records.
type recordStore struct {
	*db
	inboxes    *inboxStore // whose table of versions has that of records
	statements *recordStatements
}

// recordStatements are the statements about records.
type recordStatements struct {
	create, lock, save, remove, forget, page, one, count, sample string
}

func newRecordStatements(records string) *recordStatements {
	const counts = `SELECT count(*) FILTER (WHERE status = 1), count(*) FILTER (WHERE status = 2),
	coalesce((extract(epoch FROM now() - min(changed) FILTER (WHERE status = 1)) * 1000000)::bigint, 0) FROM `
	return &recordStatements{
		// A record that is created has the version 0 until the commit. The insert waits for another
		// one of the same id.
		create: `INSERT INTO ` + records + ` (id, kind, key, version, status) VALUES ($1::uuid, $2::text, $3::text, 0, 0)
ON CONFLICT (id) DO NOTHING`,
		lock: `SELECT ` + recordColumns + ` FROM ` + records + ` WHERE id = $1::uuid FOR UPDATE`,
		// Where the record is no longer the one that was loaded, because a handler has rolled the
		// lock back with a savepoint, the statement divides by zero.
		save: `WITH saved AS (
	UPDATE ` + records + ` SET version = $3::bigint, status = $4::smallint, state = $5::text::json, meta = $6::text::json,
		started = CASE WHEN $3::bigint = 1 THEN clock_timestamp() ELSE started END, changed = clock_timestamp(),
		forget_at = CASE WHEN $4::smallint = 2 THEN clock_timestamp() + $7::bigint * interval '1 microsecond' END
	WHERE id = $1::uuid AND version = $2::bigint RETURNING 1
) SELECT coalesce((SELECT 1 FROM saved), 1 / (random() * 0)::int)`,
		remove: `DELETE FROM ` + records + ` WHERE id = $1::uuid`,
		forget: `DELETE FROM ` + records + ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM ` + records + `
	WHERE forget_at <= now() ORDER BY forget_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED))`,
		page:   `SELECT ` + recordColumns + ` FROM ` + records + ` WHERE kind = $1::text AND key > $2::text ORDER BY key LIMIT $3::bigint`,
		one:    `SELECT ` + recordColumns + ` FROM ` + records + ` WHERE id = $1::uuid`,
		count:  counts + records + ` WHERE kind = $1::text`,
		sample: counts + records + ` TABLESAMPLE SYSTEM ($2::float8) WHERE kind = $1::text`,
	}
}

// LoadRecord implements [tablequeue.RecordTx] in one round trip, with which the transaction may
// begin.
func (h *handlerTx) LoadRecord(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (transport.Record, error) {
	for range 10 { // another transaction may remove the record between the insert and the lock
		r, err := h.lockRecord(ctx, id, create)
		if create == nil || !errors.Is(err, transport.ErrNoRecord) {
			return r, h.of.records.loaded(err, id)
		}
	}
	return transport.Record{}, h.of.records.loaded(errRemoved, id)
}

var errRemoved = fmt.Errorf("other transactions remove it: %w", transport.ErrConflict)

// loaded adds the operation to an error.
func (rs *recordStore) loaded(err error, id transport.RecordID) error {
	if errors.Is(err, transport.ErrNoRecord) {
		return err
	}
	return rs.failed(err, "load record %s", uuid.Text(id))
}

func (h *handlerTx) lockRecord(
	ctx context.Context, id transport.RecordID, create *transport.RecordName,
) (r transport.Record, err error) {
	st := h.of.records.statements
	if err := h.user.takeSessionRole(ctx); err != nil {
		return r, err
	}
	var b pgx.Batch
	b.Queue(recordSettings)
	if create != nil {
		b.Queue(st.create, uuid.Text(id), escaped(create.Kind), escaped(create.Key))
	}
	before := b.Len()
	b.Queue(st.lock, uuid.Text(id))
	b.Queue(handlersSettings)
	if h.user.role {
		b.Queue(handlersRole)
	}
	results := h.user.send(ctx, &b)
	for range before {
		if _, err := results.Exec(); err != nil {
			return r, errors.Join(err, results.Close())
		}
	}
	r, err = scanRecord(results.QueryRow())
	if closed := results.Close(); err == nil || errors.Is(err, transport.ErrNoRecord) && closed != nil {
		err = closed
	}
	return r, err
}

// scanRecord reads a row of recordColumns.
func scanRecord(row pgx.Row) (r transport.Record, err error) {
	var id string
	var status int16
	var started, changed int64
	err = row.Scan(&id, &r.Name.Kind, &r.Name.Key, &r.Version, &status, &r.State, &r.Meta, &started, &changed)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, transport.ErrNoRecord
	}
	if err != nil {
		return r, err
	}
	if r.ID, err = parseID(id); err != nil {
		return r, err
	}
	r.Name.Kind, r.Name.Key, r.Status = unescaped(r.Name.Kind), unescaped(r.Name.Key), transport.RecordStatus(status)
	if r.Version > 0 {
		r.Started, r.Changed = time.UnixMicro(started), time.UnixMicro(changed)
	}
	return r, nil
}

// queueRecords adds the statements that write records to a batch.
func (rs *recordStore) queueRecords(b *pgx.Batch, changes []*stateset.Change) {
	if len(changes) == 0 {
		return
	}
	first := b.Len()
	b.Queue(`SELECT set_config('enable_seqscan', 'off', true)`)
	for _, c := range changes {
		r := &c.Record
		switch {
		case c.Verb == stateset.Store:
			b.Queue(rs.statements.save, uuid.Text(r.ID), c.Loaded, r.Version, int16(r.Status), jsonText(r.State), jsonText(r.Meta),
				r.Keep.Microseconds())
		case c.Verb == stateset.Remove, c.Loaded == 0: // which this transaction has created
			b.Queue(rs.statements.remove, uuid.Text(r.ID))
		}
	}
	for _, q := range b.QueuedQueries[first:] {
		q.Fn = wroteRecord
	}
}

// wroteRecord reads the answer to a statement that writes a record. It divides by zero where the
// record is not the one that was loaded.
func wroteRecord(results pgx.BatchResults) error {
	_, err := results.Exec()
	switch {
	case err == nil:
		return nil
	case code(err) == divisionByZero:
		err = fmt.Errorf("%w: %w", transport.ErrConflict, err)
	}
	return fmt.Errorf("%w: %w", errWrites, err)
}

// jsonText returns JSON as text, and nil as null. Without prepared statements, bytes would be sent
// as bytea.
func jsonText(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// Text in the database has no NUL, which is stored as escape and "0", and escape as escape and "1".
// The result is as unique as the text.
const escape = "\x1a"

var (
	escaping   = strings.NewReplacer("\x00", escape+"0", escape, escape+"1")
	unescaping = strings.NewReplacer(escape+"0", "\x00", escape+"1", escape)
)

func escaped(s string) string { return escaping.Replace(s) }

func unescaped(s string) string { return unescaping.Replace(s) }

// parseID returns the id of a UUID's text.
func parseID(text string) (id transport.RecordID, err error) {
	_, err = hex.Decode(id[:], []byte(strings.ReplaceAll(text, "-", "")))
	return id, err
}

// RecordsState implements [tablequeue.Records].
func (rs *recordStore) RecordsState(ctx context.Context) error {
	columns, version, err := rs.inboxes.versionedTable(ctx, rs.writes, rs.recordTable(), dialect.RecordTable)
	switch {
	case err != nil:
		return rs.failed(err, "inspect the table of records")
	case len(columns) == 0:
		return fmt.Errorf("postgres: table of records: %w", transport.ErrNoQueue)
	case version > recordsVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, recordsVersion)}
	}
	for _, column := range recordTableColumns {
		if !slices.Contains(columns, column) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("it has no column %q", column)}
		}
	}
	if version == 0 {
		return fmt.Errorf("postgres: the table of records has no version: %w", transport.ErrNoQueue)
	}
	return nil
}

// DueForForgettingRecords implements [tablequeue.Records].
func (rs *recordStore) DueForForgettingRecords(ctx context.Context, pause time.Duration) (bool, error) {
	return rs.inboxes.DueForForgetting(ctx, dialect.RecordTable, pause)
}

// ForgetRecords implements [tablequeue.Records].
func (rs *recordStore) ForgetRecords(ctx context.Context, limit int) (int64, error) {
	tag, err := rs.execute(ctx, rs.statements.forget, limit)
	return tag.RowsAffected(), rs.failed(err, "remove ended records")
}

// Records implements [tablequeue.Records].
func (rs *recordStore) Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error) {
	return rs.selectRecords(ctx, rs.statements.page, escaped(p.Kind), escaped(p.After), p.Limit)
}

// Record implements [tablequeue.Records].
func (rs *recordStore) Record(ctx context.Context, id transport.RecordID) (transport.Record, error) {
	found, err := rs.selectRecords(ctx, rs.statements.one, uuid.Text(id))
	if err != nil || len(found) == 0 {
		return transport.Record{}, cmp.Or(err, transport.ErrNoRecord)
	}
	return found[0], nil
}

func (rs *recordStore) selectRecords(
	ctx context.Context, text string, args ...any,
) ([]transport.Record, error) {
	rows, err := rs.query(ctx, rs.writes, text, args...)
	var found []transport.Record
	if err == nil {
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (transport.Record, error) { return scanRecord(row) })
	}
	return found, rs.failed(err, "read records")
}

const (
	// countedRecords is the size in bytes up to which records are counted one by one.
	countedRecords = 64 << 20
	// sampledRecords is the size of the part of a larger table from which numbers are estimated.
	sampledRecords = 16 << 20
)

// InspectRecords implements [tablequeue.Records]. It counts the records of a small table, and
// estimates those of a larger one from some of its pages: the oldest of those is a lower bound
// then.
func (rs *recordStore) InspectRecords(
	ctx context.Context, kind string,
) (stats transport.RecordStats, err error) {
	var size int64
	err = rs.writes.QueryRow(ctx, `SELECT pg_relation_size(`+literal(rs.recordTable())+`::regclass)`).Scan(&size)
	if err != nil {
		return stats, rs.failed(err, "inspect records")
	}
	text, args, factor := rs.statements.count, []any{escaped(kind)}, 1.0
	if size > countedRecords {
		factor = float64(size) / sampledRecords
		text, args = rs.statements.sample, append(args, 100/factor)
	}
	var oldest int64
	rows, err := rs.query(ctx, rs.writes, text, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&stats.Active, &stats.Ended, &oldest}, func() error { return nil })
	}
	stats.Active, stats.Ended = int64(float64(stats.Active)*factor), int64(float64(stats.Ended)*factor)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, rs.failed(err, "inspect records")
}
