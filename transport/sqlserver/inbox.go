package sqlserver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// keyed returns a parameter with the keys, each with its number and its checksum.
func keyed(keys []transport.HandledKey) sql.NamedArg {
	rows := make([][]any, len(keys))
	for i, k := range keys {
		rows[i] = []any{i, hex.EncodeToString(k.ID[:]), int32(k.Sum)} //nolint:gosec // its bits
	}
	return list("keys", rows)
}

// inboxStore is the part of a store with the ids of handled messages.
type inboxStore struct{ *db }

// FindHandled implements [tablequeue.Inboxes].
func (in *inboxStore) FindHandled(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) ([]transport.HandledState, error) {
	states := make([]transport.HandledState, len(keys))
	err := each(ctx, in.engine, func(rows *sql.Rows) error {
		var n int
		var sum int32
		err := rows.Scan(&n, &sum)
		if err == nil {
			states[n] = transport.HandledOther
			if uint32(sum) == keys[n].Sum { //nolint:gosec // its bits
				states[n] = transport.Handled
			}
		}
		return err
	}, in.inbox(inbox).find, keyed(keys))
	return states, failed(err, "look for handled messages in inbox %q", inbox)
}

// DueForForgetting implements [tablequeue.Inboxes].
func (in *inboxStore) DueForForgetting(
	ctx context.Context, inbox string, pause time.Duration,
) (bool, error) {
	n, err := changed(ctx, in.engine, in.inbox(inbox).due, ago(pause))
	return n > 0, failed(err, "look for old ids in inbox %q", inbox)
}

// Forget implements [tablequeue.Inboxes].
func (in *inboxStore) Forget(
	ctx context.Context, inbox string, age time.Duration, limit int,
) (int64, error) {
	n, err := changed(ctx, in.engine, in.inbox(inbox).forget, ago(age), sql.Named("limit", limit))
	return n, failed(err, "remove old ids from inbox %q", inbox)
}

func ago(d time.Duration) sql.NamedArg { return sql.Named("ago", -d.Microseconds()) }

// ForgetKeys implements [tablequeue.Inboxes].
func (in *inboxStore) ForgetKeys(
	ctx context.Context, inbox string, keys []transport.HandledKey,
) (int64, error) {
	n, err := changed(ctx, in.engine, in.inbox(inbox).forgetKeys, keyed(keys))
	return n, failed(err, "remove ids from inbox %q", inbox)
}

// InspectInbox implements [tablequeue.Inboxes]. The number of rows in a large inbox is the server's
// estimate.
func (in *inboxStore) InspectInbox(
	ctx context.Context, inbox string,
) (transport.InboxStats, error) {
	stats := transport.InboxStats{Name: inbox}
	var oldest int64
	err := in.engine.QueryRowContext(ctx, in.inbox(inbox).inspect).Scan(&stats.Rows, &stats.Bytes, &stats.LastHour, &oldest)
	stats.Oldest = time.Duration(max(0, oldest)) * time.Microsecond
	return stats, failed(err, "inspect inbox %q", inbox)
}

// InboxState implements [tablequeue.Inboxes].
func (in *inboxStore) InboxState(ctx context.Context, inbox string) error {
	t := in.inbox(inbox)
	var columns []string
	err := each(ctx, in.engine, values(&columns), t.columns)
	if err == nil && len(columns) == 0 {
		err = transport.ErrNoQueue
	}
	if err == nil {
		err = noInbox(columns)
	}
	version := 0
	if err == nil {
		err = in.engine.QueryRowContext(ctx, t.version).Scan(&version)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = transport.ErrNoQueue // the installer adds the version
	case version > inboxVersion:
		err = &tablequeue.UnfitError{Reason: fmt.Sprintf("it is of version %d, this program knows version %d: update this program",
			version, inboxVersion)}
	}
	return failed(err, "inbox %q in schema %q", inbox, in.Schema)
}

// noInbox returns the reason why a table with these columns is no inbox, or nil.
func noInbox(columns []string) error {
	for _, column := range []string{"key", "at", "sum"} {
		if !slices.Contains(columns, column) {
			return &tablequeue.UnfitError{Reason: fmt.Sprintf("its table has no column %q: it is no inbox", column)}
		}
	}
	return nil
}

// inboxVersion is the version of the inboxes that this package creates.
const inboxVersion = 1

// createInboxVersions returns the statement that creates the table with the versions of inboxes. It
// is not that of queues: programs of the version before remove expired rows from every name in that
// table.
func createInboxVersions(schema string) string {
	q := quote(schema, dialect.InboxTable)
	return `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		name nvarchar(450) COLLATE Latin1_General_BIN2 PRIMARY KEY,
		version int NOT NULL,
		forgotten_at datetime2(7) NOT NULL DEFAULT sysutcdatetime());`
}

// inboxTable is the statements on an inbox. Its key is binary, as the server sorts a
// uniqueidentifier by its last bytes first: keys that grow with time are inserted at the end.
type inboxTable struct {
	create, note, drop, unnote, columns, version,
	record, find, due, forget, forgetKeys, inspect string
}

// keyList is the list of keys that a statement names: each key is searched by the table's key,
// whatever the statistics.
const (
	keyList = `OPENJSON(@keys) WITH (n int '$[0]', [key] char(32) '$[1]', [sum] int '$[2]') AS r
%s LOOP JOIN `
	keyHit = ` ON h.[key] = convert(binary(16), r.[key], 2)`
)

// dueForForgetting returns the statement that marks the inbox with a name, if no process has
// removed its old keys for long.
func dueForForgetting(schema, name string) string {
	return declareNow + `UPDATE ` + quote(schema, dialect.InboxTable) + ` WITH (ROWLOCK) SET forgotten_at = @now
WHERE name = ` + literal(name) + ` AND forgotten_at <= ` + later("@now", "@ago") + `;` + selectCount
}

func newInbox(schema string, at place) *inboxTable {
	q := at.quoted()
	table, versions, name := literal(q), quote(schema, dialect.InboxTable), literal(at.queue(schema))
	inner, left := fmt.Sprintf(keyList, "INNER"), fmt.Sprintf(keyList, "LEFT")
	isInbox := `col_length(` + table + `, N'key') = 16 AND col_length(` + table + `, N'sum') = 4`
	return &inboxTable{
		create: `IF object_id(` + table + `, N'U') IS NULL
BEGIN
	CREATE TABLE ` + q + ` (
		[key] binary(16) PRIMARY KEY CLUSTERED,
		[at] datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		[sum] int NOT NULL,
		INDEX holdfast_at NONCLUSTERED ([at]));
	ALTER TABLE ` + q + ` SET (LOCK_ESCALATION = DISABLE);
END`,
		note: fmt.Sprintf(`IF EXISTS (SELECT 1 FROM %s WHERE name = %s AND version > %d)
	THROW 50000, N'the inbox is of a version that this program does not know: update this program', 1;
IF %s AND NOT EXISTS (SELECT 1 FROM %[1]s WHERE name = %[2]s)
	INSERT INTO %[1]s (name, version) VALUES (%[2]s, %[3]d);`, versions, name, inboxVersion, isInbox),
		drop:    `IF ` + isInbox + ` DROP TABLE ` + q + `;`,
		unnote:  `IF object_id(` + literal(versions) + `, N'U') IS NOT NULL DELETE FROM ` + versions + ` WHERE name = ` + name + `;`,
		columns: `SELECT c.name FROM ` + at.database() + `sys.columns AS c WHERE c.object_id = object_id(` + table + `, N'U')`,
		version: `SELECT version FROM ` + versions + ` WHERE name = ` + name,

		// It takes no locks on ranges, for which all that record new keys would wait. Where two
		// record one key at once, the server refuses the second.
		record: `INSERT INTO ` + q + ` ([key], [sum]) OUTPUT inserted.[key]
SELECT convert(binary(16), r.[key], 2), r.[sum] FROM ` + left + q + ` AS h WITH (ROWLOCK, READCOMMITTEDLOCK)` + keyHit + `
WHERE h.[key] IS NULL ORDER BY r.[key];`,
		find: `SELECT r.n, h.[sum] FROM ` + inner + q + ` AS h` + lookHint + keyHit + `;`,

		// The first process that marks a due inbox removes its old keys.
		due: dueForForgetting(schema, at.queue(schema)),
		forget: `DECLARE @before datetime2(7) = ` + later("sysutcdatetime()", "@ago") + `;
WITH old AS (
	SELECT TOP (@limit) [at] FROM ` + q + ` WITH (INDEX (holdfast_at), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE [at] <= @before ORDER BY [at])
DELETE FROM old;` + selectCount,
		forgetKeys: `DELETE h FROM ` + inner + q + ` AS h WITH (ROWLOCK)` + keyHit + `;` + selectCount,

		// The server counts the rows itself. In a small table it may be behind.
		inspect: declareNow + `SELECT CASE WHEN s.[rows] < 100000 THEN (SELECT count_big(*) FROM ` + q + lookHint + `) ELSE s.[rows] END, s.bytes,
	(SELECT count_big(*) FROM ` + q + lookHint + ` WHERE [at] > dateadd(hour, -1, @now)),
	coalesce(datediff_big(microsecond, (SELECT min([at]) FROM ` + q + lookHint + `), @now), 0)
FROM (
	SELECT coalesce(sum(CASE WHEN p.index_id = 1 THEN p.[rows] END), 0) AS [rows], coalesce(sum(a.pages), 0) * 8192 AS bytes
	FROM ` + at.database() + `sys.partitions AS p CROSS APPLY (
		SELECT sum(u.total_pages) AS pages FROM ` + at.database() + `sys.allocation_units AS u WHERE u.container_id = p.hobt_id) AS a
	WHERE p.object_id = object_id(` + table + `, N'U')) AS s;`,
	}
}
