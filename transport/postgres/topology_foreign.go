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

// A queue table of NServiceBus has the columns id (a uuid), expires (without a zone, in UTC),
// headers, body and seq, and can be sent to. A store detects such a table when the server refuses
// the first row for it, and remembers that.

// SQLSTATEs with which a foreign table refuses rows.
const (
	undefinedColumn  = "42703"
	notNullViolation = "23502" // of id, which has no default there

	insufficientPrivilege = "42501"
)

// Reasons why a table is not received from.
var (
	errOlder error = &tablequeue.UnfitError{
		Reason: `its table is of an earlier version: run the installer, or the script that "holdfast sql script" prints`,
	}
	errAdopting error = &tablequeue.UnfitError{
		Reason: `its table has been taken over from NServiceBus in part: repeat "holdfast endpoint create --adopt", or Install with Adopt`,
	}
)

// foreignColumns are the columns of a foreign table.
var foreignColumns = []string{"id", "expires", "headers", "body", "seq"}

// unfit returns the reason why a queue's table, by its columns, is none that this version receives
// from: [transport.ErrNoQueue], errOlder, [dialect.ErrForeign], or another [*tablequeue.UnfitError]
// for a table that is no queue.
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
		return unfitForeign(columns)
	case !slices.Contains(columns, "expires"):
		return errOlder
	}
	return nil
}

func unfitForeign(columns []string) error {
	for _, c := range foreignColumns {
		if !slices.Contains(columns, c) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table is no queue: it has no column %q", c)}
		}
	}
	return dialect.ErrForeign
}

// refusedByForeign reports whether the server may have refused rows because of a foreign table.
func refusedByForeign(err error) bool {
	return slices.Contains([]string{undefinedColumn, notNullViolation}, code(err))
}

// Foreign implements [tablequeue.Foreign].
func (s *store) Foreign(queue string) bool { return s.table(queue).foreign.Load() }

// detectForeign reports whether a queue's table is foreign, which was not known.
func (s *store) detectForeign(ctx context.Context, queue string, _ error) bool {
	t := s.table(queue)
	foreign := errors.Is(unfit(ctx, s.writes, t), dialect.ErrForeign)
	return foreign && t.foreign.CompareAndSwap(false, true)
}

// Exists implements [tablequeue.Topology].
func (s *store) Exists(ctx context.Context, queue string) error {
	t := s.table(queue)
	err := unfit(ctx, s.writes, t)
	if err == nil {
		t.foreign.Store(false) // it may have been taken over
		err = s.usable(ctx, t.name)
	}
	if err == nil {
		err = errors.Join(s.warnOfFilters(ctx, t), s.warnOfRouting(ctx))
	}
	return failure(err, "queue %q in schema %q", queue, s.Schema)
}

// usable refuses a table of a later version, whose columns may have another meaning, and one that
// is being taken over. Where no version can be read the columns decide.
func (s *store) usable(ctx context.Context, queue string) error {
	var version int
	err := s.writes.QueryRow(ctx, `SELECT coalesce(max(version), 1) FROM `+s.versions()+` WHERE name = $1`, pgx.QueryExecModeExec, queue).Scan(&version)
	switch {
	case code(err) == undefinedTable || code(err) == insufficientPrivilege:
		return nil
	case err == nil && version == adoptingVersion:
		return errAdopting
	case err == nil && version > tableVersion:
		return &tablequeue.UnfitError{Reason: fmt.Sprintf(
			"its table is of version %d, this program knows those up to %d: update this program", version, tableVersion)}
	}
	return err
}
