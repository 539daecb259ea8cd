package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var _ tablequeue.DelayedTables = (*store)(nil)

// An endpoint of NServiceBus keeps its delayed messages in a table with the columns Headers, Body,
// Due, in UTC, and RowVersion.

// delayed has the statements on the table with the delayed messages of NServiceBus beside a queue.
type delayed struct{ columns, move string }

// delayedColumns is the number of columns that make a table one of delayed messages.
const delayedColumns = 3

func (s *store) delayed(queue string) delayed {
	return newDelayed(s.delayedPlace(queue), s.place(queue))
}

// delayedPlace returns the place of the table with the delayed messages of NServiceBus beside a
// queue.
func (s *store) delayedPlace(queue string) place {
	at := s.place(queue)
	at.table += tablequeue.DelayedSuffix
	return at
}

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
func (s *store) HasDelayed(ctx context.Context, queue string) (bool, error) {
	n, err := changed(ctx, s.db, s.delayed(queue).columns)
	if err == nil && n >= 0 && n != delayedColumns {
		err = fmt.Errorf("table %s: %w", s.delayedPlace(queue).quoted(), &tablequeue.UnfitError{
			Reason: "it has not the columns in which NServiceBus keeps delayed messages: Headers nvarchar, Body varbinary, Due datetime",
		})
	}
	return err == nil && n >= 0, failed(err, "look for delayed messages of queue %q", queue)
}

// MoveDue implements [tablequeue.DelayedTables].
func (s *store) MoveDue(ctx context.Context, queue string, limit int) (moved int, next time.Duration, err error) {
	const longest = 24 * time.Hour // a Duration cannot hold the years until some times
	var micros int64
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		return each(ctx, waiting{tx, lockWait}, func(rows *sql.Rows) error { return rows.Scan(&moved, &micros) },
			s.delayed(queue).move, sql.Named("limit", limit))
	})
	if err != nil {
		return 0, 0, failed(err, "move delayed messages into queue %q", queue)
	}
	return moved, time.Duration(min(micros, longest.Microseconds())) * time.Microsecond, nil
}
