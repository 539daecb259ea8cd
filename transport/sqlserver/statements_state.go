package sqlserver

import (
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// recordsVersion is the version of the table of records that this package creates.
const recordsVersion = 1

// recordTable is the statements on the table of records. Names are bytes of UTF-8, so that no
// collation compares them.
type recordTable struct {
	create, note, columns, version,
	insert, lock, save, remove, forget, page, one, count string
}

// recordColumns are the columns of a record as scanRecord reads them.
const recordColumns = `id, kind, [key], version, status, state, meta, started, changed`

// recordWait is the time for which a statement in a handler's transaction waits for a record. It
// ends with the statement: the handler's own statements wait as the handler says.
var recordWait = "SET LOCK_TIMEOUT " + strconv.FormatInt(tablequeue.RecordWait.Milliseconds(), 10) + ";\n"

func newRecords(schema string) *recordTable {
	q, versions := quote(schema, dialect.RecordTable), quote(schema, dialect.InboxTable)
	table, name := literal(q), literal(dialect.RecordTable)
	return &recordTable{
		create: `IF object_id(` + table + `, N'U') IS NULL
BEGIN
	CREATE TABLE ` + q + ` (
		id binary(16) PRIMARY KEY CLUSTERED,
		kind varbinary(1024) NOT NULL,
		[key] varbinary(500) NOT NULL,
		version bigint NOT NULL,
		status smallint NOT NULL,
		state nvarchar(max) NULL,
		meta nvarchar(max) NULL,
		started datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		changed datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		forget_at datetime2(7) NULL,
		INDEX holdfast_kind_key NONCLUSTERED (kind, [key]),
		INDEX holdfast_forget_at NONCLUSTERED (forget_at));
	ALTER TABLE ` + q + ` SET (LOCK_ESCALATION = DISABLE);
END`,
		note: fmt.Sprintf(`IF EXISTS (SELECT 1 FROM %s WHERE name = %s AND version > %d)
	THROW 50000, N'the table of records is of a version that this program does not know: update this program', 1;
IF NOT EXISTS (SELECT 1 FROM %[1]s WHERE name = %[2]s)
	INSERT INTO %[1]s (name, version) VALUES (%[2]s, %[3]d);`, versions, name, recordsVersion),
		columns: `SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(` + table + `, N'U')`,
		version: `SELECT version FROM ` + versions + ` WHERE name = ` + name,

		// A record that is created has the version 0 until the commit. Both parts wait for another
		// one of the same id that is not committed. The error of a duplicate key ends the insert
		// alone.
		insert: `IF NOT EXISTS (SELECT 1 FROM ` + q + ` WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id)
BEGIN
	BEGIN TRY
		INSERT INTO ` + q + ` (id, kind, [key], version, status) VALUES (@id, @kind, @key, 0, 0);
	END TRY
	BEGIN CATCH
		IF error_number() NOT IN (2601, 2627) THROW;
	END CATCH
END`,
		lock: `SELECT ` + recordColumns + ` FROM ` + q + ` WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id`,
		save: `UPDATE ` + q + ` WITH (ROWLOCK) SET version = @version, status = @status, state = @state, meta = @meta,
	started = CASE WHEN @version = 1 THEN sysutcdatetime() ELSE started END, changed = sysutcdatetime(),
	forget_at = CASE WHEN @status = 2 THEN ` + later("sysutcdatetime()", "@keep") + ` END
WHERE id = @id AND version = @loaded;` + selectCount,
		remove: `DELETE FROM ` + q + ` WITH (ROWLOCK) WHERE id = @id AND version = @loaded;` + selectCount,
		forget: `WITH old AS (
	SELECT TOP (@limit) forget_at FROM ` + q + ` WITH (INDEX (holdfast_forget_at), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE forget_at <= sysutcdatetime() ORDER BY forget_at)
DELETE FROM old;` + selectCount,
		page: `SELECT TOP (@limit) ` + recordColumns + ` FROM ` + q + ` WITH (READCOMMITTEDLOCK)
WHERE kind = @kind AND [key] > @after AND version > 0 ORDER BY [key]`,
		one: `SELECT ` + recordColumns + ` FROM ` + q + ` WITH (READCOMMITTEDLOCK) WHERE id = @id AND version > 0`,
		count: `SELECT coalesce(sum(CASE WHEN status = 1 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN status = 2 THEN 1 ELSE 0 END), 0),
	coalesce(datediff_big(microsecond, min(CASE WHEN status = 1 THEN changed END), sysutcdatetime()), 0)
FROM ` + q + lookHint + ` WHERE kind = @kind`,
	}
}
