package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

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
