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

// detecting writes units: again when the write has failed because of a foreign table that was not known.
func (s *store) detecting(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	if err := s.delayable(units); err != nil {
		return err
	}
	known := s.foreignRows(units)
	err := write()
	if !s.detected(ctx, units, known, err) {
		return err
	}
	if err := s.delayable(units); err != nil {
		return err
	}
	return write()
}

// delayable refuses delayed rows for foreign tables.
func (s *store) delayable(units []*tablequeue.Unit) error {
	err := dialect.CheckDelays(units, func(queue string) bool { return s.table(queue).foreign.Load() })
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// foreignRows counts the rows for tables that are known to be foreign.
func (s *store) foreignRows(units []*tablequeue.Unit) (n int) {
	for _, u := range units {
		for i := range u.Rows {
			if s.table(u.Rows[i].Queue).foreign.Load() {
				n++
			}
		}
	}
	return n
}

// detected reports whether err is of a foreign table that was not known when foreign returned known. Another goroutine
// may have detected it meanwhile.
func (s *store) detected(ctx context.Context, units []*tablequeue.Unit, known int, err error) bool {
	if c := code(err); c != undefinedColumn && c != datatypeMismatch {
		return false
	}
	for _, q := range dialect.Queues(units) {
		t := s.table(q)
		if t.foreign.Load() {
			continue
		}
		if k, err := kindOf(ctx, s.writes, t); err == nil && k == kindForeign {
			t.foreign.Store(true)
		}
	}
	return s.foreignRows(units) > known
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
	versions := quote(s.Schema, dialect.VersionTable)
	var version int
	err := s.writes.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+versions+` WHERE name = $1`, pgx.QueryExecModeExec, s.table(queue).name).Scan(&version)
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
