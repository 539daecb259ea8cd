package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// inspector is the part of a store that looks at tables.
type inspector struct{ *db }

// Exists implements [tablequeue.Topology].
func (in *inspector) Exists(ctx context.Context, queue string) error {
	columns, err := in.columns(ctx, queue)
	found := traits{}.of(columns)
	switch {
	case err != nil:
	case len(columns) == 0:
		err = transport.ErrNoQueue
	case found.foreign:
		err = unfit(columns)
	case in.Foreign(queue): // until it was adopted
		in.tables.Set(queue, newTable(in.Schema, in.place(queue), found))
	}
	return failed(err, "queue %q in schema %q", queue, in.Schema)
}

// Inspect implements [tablequeue.Topology].
func (in *inspector) Inspect(ctx context.Context, queue string) (transport.QueueStats, error) {
	st := transport.QueueStats{Name: queue}
	var oldest int64
	err := in.repeat(ctx, queue, func() error {
		return in.engine.QueryRowContext(ctx, in.table(queue).inspect).Scan(&st.Ready, &st.Unsettled, &st.Delayed, &oldest)
	})
	st.Oldest = time.Duration(oldest) * time.Microsecond
	return st, failed(err, "inspect queue %q", queue)
}

// List implements [tablequeue.Topology]. Queues are the tables that have the columns of one.
func (in *inspector) List(ctx context.Context) (names []string, err error) {
	err = each(ctx, in.engine, values(&names), listQueues, sql.Named("schema", in.Schema))
	for i := range names {
		names[i] = place{schema: in.Schema, table: names[i]}.queue(in.Schema)
	}
	return names, failed(err, "list queues")
}

// Examine implements [tablequeue.Examiner]. The key of a row is a bigint in every table, so there
// is no warning about its range.
func (in *inspector) Examine(
	ctx context.Context, q transport.Queue,
) (all []tablequeue.Remark, err error) {
	columns, err := in.columns(ctx, q.Name)
	if err != nil {
		return nil, failed(err, "look at queue %q", q.Name)
	}
	at := in.place(q.Name)
	a := newAdoption(in.Schema, at)
	switch found := (traits{}).of(columns); {
	case found.foreign && (q.Shared || at.catalog != ""): // which are not adopted
		return nil, nil
	case found.foreign:
		parts, err := unfitParts(ctx, in.engine, a.unfit)
		if err == nil && len(parts) > 0 {
			all = append(all, tablequeue.Remark{State: transport.Differs, Text: refusal(parts).Error()})
		}
		return all, failed(err, "look at queue %q", q.Name)
	case found.first && q.Shared:
		all = append(all, tablequeue.Remark{
			State: transport.Differs,
			Text:  `it is of version 1, which ServiceControl cannot read: "holdfast endpoint create --adopt" rewrites the table`,
		})
	}
	if q.Timers && slices.Contains(columns, "lease_id") && !slices.Contains(columns, "timer") {
		all = append(all, tablequeue.Remark{State: transport.Differs, Text: tablequeue.ErrNoTimers.Error()})
	}
	adopted, err := changed(ctx, in.engine, a.adopted)
	if adopted > 0 {
		all = append(all, tablequeue.Remark{
			State: transport.Noted,
			Text:  "it was taken over from NServiceBus, which ignores leases and delays: its endpoint must not receive from it again",
		})
	}
	return all, failed(err, "look at queue %q", q.Name)
}

// Locked implements [tablequeue.Locks]. It tries a lock on each queue: to see the locks of others
// takes rights that an endpoint seldom has.
func (in *inspector) Locked(ctx context.Context, queues []string) ([]bool, error) {
	locked := make([]bool, len(queues))
	for i, q := range queues {
		err := each(ctx, in.engine, func(*sql.Rows) error { return nil }, in.table(q).try)
		if _, answered := errors.AsType[mssql.Error](err); err != nil && !answered {
			return nil, failed(undoneError{err}, "look for locks on queue %q", q)
		}
		locked[i] = numberOf(err) == lockTimeoutExceeded
	}
	return locked, nil
}

// missingTables returns the numbers of those of @names that are no tables.
const missingTables = `SELECT r.n FROM OPENJSON(@names) WITH (n int '$[0]', name nvarchar(max) '$[1]') AS r
WHERE object_id(r.name) IS NULL`

// Missing implements [tablequeue.Topology].
func (in *inspector) Missing(ctx context.Context, queues []string) ([]bool, error) {
	missing, names := make([]bool, len(queues)), make([][]any, len(queues))
	for i, q := range queues {
		names[i] = []any{i, in.place(q).quoted()}
	}
	if err := each(ctx, in.engine, hits(func(i int) { missing[i] = true }), missingTables, list("names", names)); err != nil {
		return nil, failed(undoneError{err}, "look for tables")
	}
	return missing, nil
}

// DueForSweep implements [tablequeue.Sweeper]. The first process that marks a due queue sweeps it.
func (in *inspector) DueForSweep(ctx context.Context) (queues []string, err error) {
	err = each(ctx, in.engine, values(&queues), newVersions(in.Schema).due)
	return queues, failed(err, "look for expired rows")
}

// SweepSome implements [tablequeue.Sweeper].
func (in *inspector) SweepSome(ctx context.Context, queue string) (int64, error) {
	n, err := changed(ctx, in.engine, in.table(queue).sweep)
	return n, failed(err, "remove expired rows of queue %q", queue)
}

// Now implements [tablequeue.Timed].
func (in *inspector) Now(ctx context.Context) (now time.Time, err error) {
	err = in.engine.QueryRowContext(ctx, databaseTime).Scan(&now)
	return now, failed(err, "ask for the time")
}
