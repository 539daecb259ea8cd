package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// A queue table of NServiceBus has the columns id (a uuid), expires (without a zone, in UTC), headers, body and seq,
// and can be sent to. A store detects such a table when the server refuses the first row for it, and remembers that.

// SQLSTATEs with which a foreign table refuses rows.
const (
	undefinedColumn  = "42703"
	datatypeMismatch = "42804"

	insufficientPrivilege = "42501"
)

var errOlder error = &tablequeue.UnfitError{
	Reason: `its table is of an earlier version: run the installer, or the script that "holdfast sql script" prints`,
}

// unfit returns the reason why a queue's table, by its columns, is none of this version: [transport.ErrNoQueue],
// errOlder or [dialect.ErrForeign].
func unfit(ctx context.Context, db querier, t *table) error {
	var columns []string
	err := db.QueryRow(ctx, `SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, t.quoted).Scan(&columns)
	switch {
	case err != nil:
		return err
	case len(columns) == 0:
		return transport.ErrNoQueue
	case !slices.Contains(columns, "lease_id"):
		return dialect.ErrForeign
	case !slices.Contains(columns, "expires"):
		return errOlder
	}
	return nil
}

// refusedByForeign reports whether the server may have refused rows because of a foreign table.
func refusedByForeign(err error) bool {
	return slices.Contains([]string{undefinedColumn, datatypeMismatch}, code(err))
}

func (s *store) foreign(queue string) bool { return s.table(queue).foreign.Load() }

// detectForeign reports whether a queue's table is foreign, which was not known.
func (s *store) detectForeign(ctx context.Context, queue string, _ error) bool {
	t := s.table(queue)
	foreign := errors.Is(unfit(ctx, s.writes, t), dialect.ErrForeign)
	return foreign && t.foreign.CompareAndSwap(false, true)
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	err := unfit(ctx, s.writes, s.table(queue))
	if err == nil {
		err = s.notNewer(ctx, queue)
	}
	return failure(err, "queue %q in schema %q", queue, s.Schema)
}

// notNewer refuses a table of a later version, whose columns may have another meaning. Where no version can be read the
// columns decide.
func (s *store) notNewer(ctx context.Context, queue string) error {
	var version int
	err := s.writes.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+s.versions()+` WHERE name = $1`, pgx.QueryExecModeExec, queue).Scan(&version)
	switch {
	case code(err) == undefinedTable || code(err) == insufficientPrivilege:
		return nil
	case err == nil && version > tableVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf(
			"its table is of version %d, this program knows those up to %d: update this program", version, tableVersion)}
	}
	return err
}
