package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// recordsVersion is the version of the table of records that this package creates.
const recordsVersion = 1

// recordStorage are the storage parameters of the table of records. Pages have room for updates of
// records, which change no indexed column unless a record ends.
const recordStorage = `fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0,
	toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0`

// installRecords returns the statements that create the table of records and its version, which is
// among those of inboxes. Names are compared bytewise: another version of the system's collations
// would damage the index.
func (s *store) installRecords() []step {
	name, records := dialect.RecordTable, s.records()
	version := `(SELECT version FROM ` + s.inboxes() + ` WHERE name = ` + literal(name) + `)`
	return []step{
		s.installInboxVersions(),
		{"table of records", do(`IF ` + regclass(records) + ` IS NULL THEN
CREATE TABLE ` + records + ` (
	id uuid PRIMARY KEY,
	kind text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	version bigint NOT NULL,
	status smallint NOT NULL,
	state json,
	meta json,
	started timestamptz NOT NULL DEFAULT clock_timestamp(),
	changed timestamptz NOT NULL DEFAULT clock_timestamp(),
	forget_at timestamptz
) WITH (` + recordStorage + `);
CREATE INDEX ` + quote(name+"_kind_key_idx") + ` ON ` + records + ` (kind, key);
CREATE INDEX ` + quote(name+"_forget_at_idx") + ` ON ` + records + ` (forget_at) WHERE forget_at IS NOT NULL;
` + s.versionedAs(name, recordsVersion) + `;
ELSIF ` + strconv.Itoa(len(recordTableColumns)) + ` > (SELECT count(*) FROM pg_attribute WHERE attrelid = ` + regclass(records) + ` AND NOT attisdropped AND attname IN ` + literals(recordTableColumns) + `) THEN
	RAISE EXCEPTION '% is a table of another kind: rename it', ` + literal(records) + `;
ELSIF coalesce(` + version + `, 0) > ` + strconv.Itoa(recordsVersion) + ` THEN
	RAISE EXCEPTION 'the table of records is of version %, this program knows version ` + strconv.Itoa(recordsVersion) + `: update this program', ` + version + `;
ELSIF ` + version + ` IS NULL THEN
	` + s.versionedAs(name, recordsVersion) + `;
END IF`)},
	}
}

// recordTableColumns are the columns of the table of records.
var recordTableColumns = []string{
	"id", "kind", "key", "version", "status", "state", "meta", "started", "changed", "forget_at",
}

// RecordsState implements [tablequeue.Records].
func (s *store) RecordsState(ctx context.Context) error {
	columns, version, err := s.versionedTable(ctx, s.writes, s.records(), dialect.RecordTable)
	switch {
	case err != nil:
		return s.failed(err, "inspect the table of records")
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
func (s *store) DueForForgettingRecords(ctx context.Context, pause time.Duration) (bool, error) {
	return s.DueForForgetting(ctx, dialect.RecordTable, pause)
}

// ForgetRecords implements [tablequeue.Records].
func (s *store) ForgetRecords(ctx context.Context, limit int) (int64, error) {
	tag, err := s.execute(ctx, s.recordStatements.forget, limit)
	return tag.RowsAffected(), s.failed(err, "remove ended records")
}

// Records implements [tablequeue.Records].
func (s *store) Records(ctx context.Context, p transport.RecordPage) ([]transport.Record, error) {
	return s.selectRecords(ctx, s.recordStatements.page, escaped(p.Kind), escaped(p.After), p.Limit)
}

// Record implements [tablequeue.Records].
func (s *store) Record(ctx context.Context, id transport.RecordID) (transport.Record, error) {
	found, err := s.selectRecords(ctx, s.recordStatements.one, uuid.Text(id))
	if err != nil || len(found) == 0 {
		return transport.Record{}, cmp.Or(err, transport.ErrNoRecord)
	}
	return found[0], nil
}

func (s *store) selectRecords(ctx context.Context, text string, args ...any) ([]transport.Record, error) {
	rows, err := s.query(ctx, s.writes, text, args...)
	var found []transport.Record
	if err == nil {
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (transport.Record, error) { return scanRecord(row) })
	}
	return found, s.failed(err, "read records")
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
func (s *store) InspectRecords(ctx context.Context, kind string) (stats transport.RecordStats, err error) {
	var size int64
	err = s.writes.QueryRow(ctx, `SELECT pg_relation_size(`+literal(s.records())+`::regclass)`).Scan(&size)
	if err != nil {
		return stats, s.failed(err, "inspect records")
	}
	text, args, factor := s.recordStatements.count, []any{escaped(kind)}, 1.0
	if size > countedRecords {
		factor = float64(size) / sampledRecords
		text, args = s.recordStatements.sample, append(args, 100/factor)
	}
	var oldest int64
	rows, err := s.query(ctx, s.writes, text, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&stats.Active, &stats.Ended, &oldest}, func() error { return nil })
	}
	stats.Active, stats.Ended = int64(float64(stats.Active)*factor), int64(float64(stats.Ended)*factor)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, s.failed(err, "inspect records")
}
