package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

// handingOver is the part of a store that hands queues over to NServiceBus, and has its delayed
// messages.
type handingOver struct {
	*db
	installer *installer
}

// Holders implements [tablequeue.HandingOver].
func (ho *handingOver) Holders(
	ctx context.Context, queue string,
) (all []tablequeue.Holder, err error) {
	err = each(ctx, ho.engine, func(rows *sql.Rows) error {
		var h tablequeue.Holder
		err := rows.Scan(&h.Owner, &h.Rows)
		all = append(all, h)
		return err
	}, ho.handOver(queue).holders)
	return all, failed(err, "look for leases of queue %q", queue)
}

// PrepareHandOver implements [tablequeue.HandingOver]. Ids need no index: NServiceBus receives by
// RowVersion.
func (ho *handingOver) PrepareHandOver(ctx context.Context, queue string) error {
	if err := checkName("queue", ho.delayedPlace(queue).table); err != nil {
		return failed(&tablequeue.UnfitError{Reason: "its name is too long for NServiceBus, whose table of delayed messages adds " +
			tablequeue.DelayedSuffix}, "queue %q", queue)
	}
	columns, err := ho.columns(ctx, queue)
	if err == nil && (traits{}).of(columns).first {
		err = &tablequeue.UnfitError{
			Reason: `it is of version 1, which NServiceBus cannot read: "holdfast endpoint create --adopt" rewrites the table`,
		}
	}
	if err != nil {
		return failed(err, "queue %q", queue)
	}
	if _, err := ho.HasDelayed(ctx, queue); err != nil {
		return err
	}
	h := ho.handOver(queue)
	if _, err := ho.engine.ExecContext(ctx, h.fill); err != nil {
		return failed(err, "replace empty bodies of queue %q", queue)
	}
	err = ho.installer.installing(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, h.create)
		return err
	})
	return failed(err, "create the table of delayed messages of queue %q", queue)
}

// MoveDelayed implements [tablequeue.HandingOver].
func (ho *handingOver) MoveDelayed(
	ctx context.Context, queue, from string, limit int, headers func(string) string,
) (moved int, err error) {
	err = ho.repeat(ctx, from, func() error {
		return ho.inTx(ctx, func(tx *sql.Tx) (err error) {
			moved, err = ho.moveDelayed(ctx, waiting{tx, lockWait}, queue, from, limit, headers)
			return err
		})
	})
	if err != nil {
		moved = 0
	}
	return moved, failed(err, "move delayed messages of queue %q", from)
}

func (ho *handingOver) moveDelayed(
	ctx context.Context, o on, queue, from string, limit int, headers func(string) string,
) (int, error) {
	statements := newMoving(ho.table(from), ho.delayedPlace(queue), from != queue)
	var found [][]any
	err := each(ctx, o, func(rows *sql.Rows) error {
		var seq int64
		var text string
		err := rows.Scan(&seq, &text)
		found = append(found, []any{seq, headers(text)})
		return err
	}, statements.find, sql.Named("limit", limit))
	if err != nil || len(found) == 0 {
		return 0, err
	}
	moved, err := changed(ctx, o, statements.move, list("rows", found))
	if err == nil && int(moved) != len(found) {
		err = fmt.Errorf("%d of %d messages were moved", moved, len(found))
	}
	return len(found), err
}

// maxEndRows bounds the rows that are moved at once while the table is locked.
const maxEndRows = 1000

// EndHandOver implements [tablequeue.HandingOver].
func (ho *handingOver) EndHandOver(
	ctx context.Context, queue string, headers func(string) string,
) (moved int, err error) {
	err = ho.inTx(ctx, func(tx *sql.Tx) (err error) {
		moved, err = ho.endHandOver(ctx, waiting{tx, adoptionWait}, queue, headers)
		return err
	})
	if err != nil {
		return 0, failed(err, "end the use of queue %q", queue)
	}
	columns, err := ho.columns(ctx, queue)
	if err == nil {
		ho.tables.Set(queue, newTable(ho.Schema, ho.place(queue), traits{}.of(columns)))
	}
	return moved, failed(err, "queue %q", queue)
}

func (ho *handingOver) endHandOver(
	ctx context.Context, o on, queue string, headers func(string) string,
) (moved int, err error) {
	h := ho.handOver(queue)
	if err := each(ctx, o, func(*sql.Rows) error { return nil }, h.lock); err != nil {
		return 0, err
	}
	switch held, err := changed(ctx, o, h.leased); {
	case err != nil:
		return 0, err
	case held > 0:
		return 0, tablequeue.ErrLeased
	}
	for {
		n, err := ho.moveDelayed(ctx, o, queue, queue, maxEndRows, headers)
		if err != nil {
			return 0, err
		}
		if moved += n; n == 0 {
			break
		}
	}
	for _, statement := range []string{h.end, ho.table(queue).forget} {
		if _, err := o.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	return moved, nil
}

// leased is the condition of a row that a claim holds now.
const leased = `lease_id IS NOT NULL AND visible_at > sysutcdatetime()`

// handOver has the statements that make a queue one of NServiceBus.
type handOver struct {
	holders string // read also what others have locked
	fill    string // replaces bodies that are null, which NServiceBus does not store
	create  string // creates the table of delayed messages
	lock    string // of the table, until the transaction ends
	leased  string
	end     string // removes the columns that NServiceBus does not have
}

func newHandOver(at, delayed place) handOver {
	q, d := at.quoted(), delayed.quoted()
	table := `object_id(` + literal(q) + `, N'U')`
	return handOver{
		holders: `SELECT coalesce(lease_owner, N''), count_big(*) FROM ` + q + ` WITH (READUNCOMMITTED)
WHERE ` + leased + ` GROUP BY lease_owner ORDER BY lease_owner`,
		fill: `UPDATE q SET Body = 0x FROM ` + q + ` AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE q.Body IS NULL;`,
		create: `IF object_id(` + literal(d) + `, N'U') IS NULL
	CREATE TABLE ` + d + ` (
		Headers nvarchar(max) NOT NULL,
		Body varbinary(max),
		Due datetime NOT NULL,
		RowVersion bigint IDENTITY NOT NULL,
		INDEX Index_Due NONCLUSTERED (Due));`,
		lock:   `SELECT TOP (1) 1 FROM ` + q + ` WITH (TABLOCKX, HOLDLOCK)`,
		leased: `SELECT count_big(*) FROM ` + q + ` WHERE ` + leased,
		end: `DECLARE @drop nvarchar(max) = N'';
SELECT @drop += ` + literal(`ALTER TABLE `+q+` DROP CONSTRAINT `) + ` + quotename(d.name) + N';' FROM sys.default_constraints AS d
WHERE d.parent_object_id = ` + table + ` AND col_name(d.parent_object_id, d.parent_column_id) IN (N'visible_at', N'delivery_count');
EXEC (@drop);
DROP INDEX holdfast_due ON ` + q + `;
ALTER TABLE ` + q + ` DROP COLUMN visible_at, delivery_count, lease_id, lease_owner, last_error;`,
	}
}

// moving has the statements that move delayed messages from a queue into the table of delayed
// messages of NServiceBus.
type moving struct{ find, move string }

// newMoving returns the statements for the rows that become visible later; with all, for all rows
// without a lease.
func newMoving(from *table, delayed place, all bool) moving {
	which := `visible_at > sysutcdatetime() AND lease_id IS NULL`
	if all {
		which = `NOT (` + leased + `)`
	}
	key := from.traits.key()
	return moving{
		find: `SELECT TOP (@limit) ` + key + `, Headers FROM ` + from.quoted + ` WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE ` + which + ` ORDER BY visible_at, ` + key,

		// A datetime has 3.3 ms, to which it is rounded: 2 ms more keep it from being early.
		move: `DECLARE @gone TABLE (Headers nvarchar(max), Body varbinary(max), visible_at datetime2(7));
DELETE q OUTPUT r.headers, deleted.Body, deleted.visible_at INTO @gone
FROM OPENJSON(@rows) WITH (seq bigint '$[0]', headers nvarchar(max) '$[1]') AS r
INNER LOOP JOIN ` + from.quoted + ` AS q WITH (ROWLOCK) ON q.` + key + ` = r.seq;
INSERT INTO ` + delayed.quoted() + ` (Headers, Body, Due)
SELECT g.Headers, coalesce(g.Body, 0x), convert(datetime, dateadd(millisecond, 2, g.visible_at)) FROM @gone AS g ORDER BY g.visible_at;` + selectCount,
	}
}

// An endpoint of NServiceBus keeps its delayed messages in a table with the columns Headers, Body,
// Due, in UTC, and RowVersion.

// delayed has the statements on the table with the delayed messages of NServiceBus beside a queue.
type delayed struct{ columns, move string }

// delayedColumns is the number of columns that make a table one of delayed messages.
const delayedColumns = 3

func newDelayed(from, to place) delayed {
	q, table := from.quoted(), `object_id(`+literal(from.quoted())+`, N'U')`
	return delayed{
		// columns returns a negative number where there is no such table.
		columns: `SELECT CASE WHEN ` + table + ` IS NULL THEN -1 ELSE (
	SELECT count(*) FROM ` + from.database() + `sys.columns AS c WHERE c.object_id = ` + table + `
	AND concat(c.name, N' ', type_name(c.system_type_id)) IN (N'Headers nvarchar', N'Body varbinary', N'Due datetime')) END`,

		// move returns the number of rows that it has moved, and the microseconds until the next is
		// due.
		move: `DECLARE @now datetime = getutcdate();
DECLARE @moved TABLE (Headers nvarchar(max), Body varbinary(max), Due datetime);
WITH due AS (
	SELECT TOP (@limit) Headers, Body, Due FROM ` + q + ` WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
	WHERE Due < @now ORDER BY Due)
DELETE FROM due OUTPUT deleted.Headers, deleted.Body, deleted.Due INTO @moved;
INSERT INTO ` + to.quoted() + ` (Headers, Body) SELECT m.Headers, coalesce(m.Body, 0x) FROM @moved AS m ORDER BY m.Due;
SELECT (SELECT count(*) FROM @moved), coalesce((SELECT TOP (1) datediff_big(microsecond, @now, Due)
	FROM ` + q + lookHint + ` WHERE Due > @now ORDER BY Due), 0);`,
	}
}

// HasDelayed implements [tablequeue.DelayedTables].
func (ho *handingOver) HasDelayed(ctx context.Context, queue string) (bool, error) {
	n, err := changed(ctx, ho.engine, ho.delayed(queue).columns)
	if err == nil && n >= 0 && n != delayedColumns {
		err = fmt.Errorf("table %s: %w", ho.delayedPlace(queue).quoted(), &tablequeue.UnfitError{
			Reason: "it has not the columns in which NServiceBus keeps delayed messages: Headers nvarchar, Body varbinary, Due datetime",
		})
	}
	return err == nil && n >= 0, failed(err, "look for delayed messages of queue %q", queue)
}

// MoveDue implements [tablequeue.DelayedTables].
func (ho *handingOver) MoveDue(
	ctx context.Context, queue string, limit int,
) (moved int, next time.Duration, err error) {
	const longest = 24 * time.Hour // a Duration cannot hold the years until some times
	var micros int64
	err = ho.inTx(ctx, func(tx *sql.Tx) error {
		return each(ctx, waiting{tx, lockWait}, func(rows *sql.Rows) error { return rows.Scan(&moved, &micros) },
			ho.delayed(queue).move, sql.Named("limit", limit))
	})
	if err != nil {
		return 0, 0, failed(err, "move delayed messages into queue %q", queue)
	}
	return moved, time.Duration(min(micros, longest.Microseconds())) * time.Microsecond, nil
}
