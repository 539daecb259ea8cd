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

// NServiceBus's queue tables have the columns id (a uuid), expires (without a zone, in UTC), headers,
// body and seq. They can be sent to: that a table is one of them is found out when the first row for
// it is refused, and known from then on.

// kind is what there is where a queue's table should be.
type kind int8

const (
	missing kind = iota
	ours
	older  // ours, of an earlier version
	theirs // any other table
)

// SQLSTATEs by which rows for one of our tables are refused by one of theirs.
const (
	undefinedColumn  = "42703"
	datatypeMismatch = "42804"

	insufficientPrivilege = "42501"
)

var errOlder error = &tablequeue.UnfitError{
	Reason: "its table is of an earlier version: run the installer, or what holdfast sql script prints",
}

// kindOf looks at a queue's table.
func kindOf(ctx context.Context, db querier, t *table) (kind, error) {
	var columns []string
	err := db.QueryRow(ctx, `SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, t.quoted).Scan(&columns)
	switch has := func(name string) bool { return slices.Contains(columns, name) }; {
	case err != nil || len(columns) == 0:
		return missing, err
	case !has("lease_id"):
		return theirs, nil
	case !has("expires"):
		return older, nil
	}
	return ours, nil
}

// knowing writes units: again when that has failed because of what was not known of a table.
func (s *store) knowing(ctx context.Context, units []*tablequeue.Unit, write func() error) error {
	if err := s.delayable(units); err != nil {
		return err
	}
	known := s.theirs(units)
	err := write()
	if !s.learned(ctx, units, known, err) {
		return err
	}
	if err := s.delayable(units); err != nil {
		return err
	}
	return write()
}

// delayable refuses delayed rows for foreign tables.
func (s *store) delayable(units []*tablequeue.Unit) error {
	err := dialect.CheckDelays(units, func(queue string) bool { return s.table(queue).theirs.Load() })
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

// theirs counts the rows for tables that are known to be theirs.
func (s *store) theirs(units []*tablequeue.Unit) (n int) {
	for _, u := range units {
		for i := range u.Rows {
			if s.table(u.Rows[i].Queue).theirs.Load() {
				n++
			}
		}
	}
	return n
}

// learned tells whether err came of a table that is one of theirs and was not known to be, when known rows were: somebody
// else may have found it out meanwhile.
func (s *store) learned(ctx context.Context, units []*tablequeue.Unit, known int, err error) bool {
	if c := code(err); c != undefinedColumn && c != datatypeMismatch {
		return false
	}
	for _, q := range dialect.Queues(units) {
		t := s.table(q)
		if t.theirs.Load() {
			continue
		}
		if k, err := kindOf(ctx, s.writes, t); err == nil && k == theirs {
			t.theirs.Store(true)
		}
	}
	return s.theirs(units) > known
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	found, err := kindOf(ctx, s.writes, s.table(queue))
	if err == nil {
		err = map[kind]error{missing: transport.ErrNoQueue, older: errOlder, theirs: dialect.ErrForeign}[found]
	}
	if err == nil {
		err = s.notNewer(ctx, queue)
	}
	if err != nil {
		return fmt.Errorf("postgres: queue %q in schema %q: %w", queue, s.Schema, err)
	}
	return nil
}

// notNewer refuses a table that a later version of this package has made: its columns may mean something else. Where no
// version can be read the columns decide.
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
