package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// A queue table of NServiceBus has the columns id (a uuid), expires (without a zone, in UTC), headers, body and seq,
// and can be sent to. A store detects such a table when the server refuses the first row for it, and remembers that.

// tableKind is the kind of a queue's table.
type tableKind int8

const (
	kindMissing tableKind = iota
	kindOwn
	kindOlder   // of an earlier version
	kindForeign // any other table
)

// SQLSTATEs with which a foreign table refuses rows.
const (
	undefinedColumn  = "42703"
	datatypeMismatch = "42804"

	insufficientPrivilege = "42501"
)

var errOlder error = &tablequeue.UnfitError{
	Reason: `its table is of an earlier version: run the installer, or the script that "holdfast sql script" prints`,
}

// kindOf returns the kind of a queue's table, by its columns.
func kindOf(ctx context.Context, db querier, t *table) (tableKind, error) {
	var columns []string
	err := db.QueryRow(ctx, `SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, t.quoted).Scan(&columns)
	switch has := func(name string) bool { return slices.Contains(columns, name) }; {
	case err != nil || len(columns) == 0:
		return kindMissing, err
	case !has("lease_id"):
		return kindForeign, nil
	case !has("expires"):
		return kindOlder, nil
	}
	return kindOwn, nil
}

// refusedByForeign reports whether the server may have refused rows because of a foreign table.
func refusedByForeign(err error) bool {
	return slices.Contains([]string{undefinedColumn, datatypeMismatch}, code(err))
}

func (s *store) foreign(queue string) bool { return s.table(queue).foreign.Load() }

// detectForeign reports whether a queue's table is foreign, which was not known.
func (s *store) detectForeign(ctx context.Context, queue string, _ error) bool {
	t := s.table(queue)
	if t.foreign.Load() {
		return false
	}
	k, err := kindOf(ctx, s.writes, t)
	return err == nil && k == kindForeign && t.foreign.CompareAndSwap(false, true)
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	found, err := kindOf(ctx, s.writes, s.table(queue))
	if err == nil {
		err = map[tableKind]error{kindMissing: transport.ErrNoQueue, kindOlder: errOlder, kindForeign: dialect.ErrForeign}[found]
	}
	if err == nil {
		err = s.notNewer(ctx, queue)
	}
	if err != nil {
		return fmt.Errorf("postgres: queue %q in schema %q: %w", queue, s.Schema, err)
	}
	return nil
}

// notNewer refuses a table of a later version, whose columns may have another meaning. Where no version can be read the
// columns decide.
func (s *store) notNewer(ctx context.Context, queue string) error {
	var version int
	err := s.writes.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+s.versions()+` WHERE name = $1`, pgx.QueryExecModeExec, s.table(queue).name).Scan(&version)
	switch {
	case code(err) == undefinedTable || code(err) == insufficientPrivilege:
		return nil
	case err != nil:
		return err
	case version > tableVersion:
		return newerTable(version)
	}
	return nil
}

func newerTable(version int) error {
	return &tablequeue.UnfitError{Reason: fmt.Sprintf(
		"its table is of version %d, this program knows those up to %d: update this program", version, tableVersion)}
}
