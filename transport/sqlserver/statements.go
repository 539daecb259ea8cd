package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// All statements of the SQL Server dialect. Lists are JSON parameters. A statement returns the
// numbers n, from 0, of the list's elements that hit a row. Durations are in microseconds.

const (
	// databaseAndLevel returns also the compatibility level, on which OPENJSON depends.
	databaseAndLevel = `SELECT db_name(), (SELECT d.compatibility_level FROM sys.databases AS d WHERE d.database_id = db_id())`

	databaseName = `SELECT db_name()`

	updateability = `SELECT convert(nvarchar(128), databasepropertyex(db_name(), N'Updateability'))`

	databaseTime = `SELECT sysutcdatetime()`

	// setSavepoint and undoSavepoint are a savepoint in a caller's transaction.
	setSavepoint  = `SAVE TRANSACTION holdfast_send`
	undoSavepoint = `ROLLBACK TRANSACTION holdfast_send`

	// installLock is held until the transaction ends.
	installLock = `DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
IF @got < 0 THROW 50000, N'another installer has been at work for a minute', 1;`

	listQueues = `SELECT t.name FROM sys.tables AS t WHERE t.schema_id = schema_id(@schema) AND 3 = (
	SELECT count(*) FROM sys.columns AS c
	WHERE c.object_id = t.object_id AND c.name IN (N'visible_at', N'delivery_count', N'lease_id'))
ORDER BY t.name`
)

const (
	declareNow = "DECLARE @now datetime2(7) = sysutcdatetime();\n"

	// leaseList is the list of rows that a statement names by key and lease. The loop join finds
	// each by its key, whatever the statistics.
	leaseList = `OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN `
	// lookHint skips locked rows, also where the database keeps row versions for readers.
	lookHint = ` WITH (READPAST, READCOMMITTEDLOCK)`

	// dueHint reads rows in the order in which they are due, and skips locked ones.
	dueHint = ` WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)`
)

// later returns the expression for us microseconds after at. The number of a dateadd is an int.
func later(at, us string) string {
	return "dateadd(microsecond, " + us + " % 1000000, dateadd(second, " + us + " / 1000000 % 86400, dateadd(day, " +
		us + " / 1000000 / 86400, " + at + ")))"
}

// traits of a queue's table are detected when the server refuses a statement.
type traits struct {
	triggers    bool // OUTPUT needs a table variable
	foreign     bool // the table has NServiceBus's columns only
	recoverable bool // it is foreign and has the column of that name
	first       bool // the table is of version 1: its key is seq, and its Id is text
}

// key returns the column that is the key of a row: the identity of the table. NServiceBus receives
// in its order.
func (t traits) key() string {
	if t.first {
		return "seq"
	}
	return "RowVersion"
}

// id returns the expression for the id of a row of the given name as text. NServiceBus writes ids
// in lower case.
func (t traits) id(row string) string {
	if t.first {
		return row + "Id"
	}
	return "lower(convert(nvarchar(36), " + row + "Id))"
}

// table is a queue's table with its statements.
type table struct {
	quoted string
	traits traits
	claim, renew, update, remove, insert, restore,
	abandon, orphans, cancel, take, sweep, purge,
	last, browse, inspect, columns, create, createShared, note, drop, forget,
	try, hasten,
	vacate, insertNamed, addNames, indexNames string
}

func newTable(schema string, at place, traits traits) *table {
	t := &table{quoted: at.quoted(), traits: traits}
	t.leasing(t.quoted)
	t.removing(t.quoted)
	t.looking(t.quoted)
	t.waiting(t.quoted)
	t.making(schema, at)
	t.insert = t.inserting(t.quoted, "", "")
	t.naming(t.quoted)
	if traits.foreign {
		t.foreign(t.quoted)
	}
	return t
}

// giving returns the parts of a statement on q that return values of the rows which it hits. On a
// table with triggers they are columns of a table variable.
func (t *table) giving(values, hit, columns string) (declare, output, after string) {
	if !t.traits.triggers {
		return "", "OUTPUT " + values, ";"
	}
	return "DECLARE @hit TABLE (" + columns + ");\n", "OUTPUT " + values + " INTO @hit", ";\nSELECT " + hit + " FROM @hit;"
}

// leasing sets the statements that lease rows and settle leased rows. A character of headers has
// two bytes, where UTF-8 may have three.
func (t *table) leasing(q string) {
	key := t.traits.key()
	leased := ` AS q WITH (ROWLOCK) ON q.` + key + ` = r.seq AND q.lease_id = r.lease`
	declare, output, after := t.giving(`inserted.`+key+`, `+t.traits.id("inserted.")+`, inserted.Headers, inserted.Body,
	inserted.delivery_count, CASE WHEN inserted.Expires <= @now THEN 1 ELSE 0 END`, `seq, id, headers, body, delivery_count, expired`,
		`seq bigint, id nvarchar(max), headers nvarchar(max), body varbinary(max), delivery_count int, expired int`)
	t.claim = declareNow + declare + `WITH due AS (
	SELECT TOP (@limit) ` + key + `, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner,
		datalength(Headers) * 3 / 2 + coalesce(datalength(Body), 0) AS size
	FROM ` + q + dueHint + `
	WHERE visible_at <= @now ORDER BY visible_at, ` + key + `),
fit AS (
	SELECT ` + key + `, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner, size,
		sum(size) OVER (ORDER BY visible_at, ` + key + ` ROWS UNBOUNDED PRECEDING) AS total
	FROM due)
UPDATE fit SET delivery_count = delivery_count + 1, visible_at = ` + later("@now", "@for") + `,
	lease_id = @lease, lease_owner = @owner
` + output + `
WHERE total <= @bytes OR total = size` + after + `
DECLARE @claimed int = @@ROWCOUNT;
SELECT @now, (SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE @claimed = 0 AND visible_at > @now ORDER BY visible_at, ` + key + `);`

	declare, output, after = t.giving("r.n", "n", "n int")
	t.renew = declareNow + declare + `UPDATE q SET visible_at = ` + later("@now", "@for") + `
` + output + ` FROM ` + leaseList + q + leased + after

	t.update = declareNow + declare + `UPDATE q SET visible_at = ` + later("@now", "r.after_us") + `,
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL, last_error = coalesce(r.note, q.last_error)
` + output + ` FROM ` + leaseList + q + leased + after

	t.remove = declare + `DELETE q ` + output + ` FROM ` + leaseList + q + leased + after

	// Locked rows are skipped: other sessions lock rows in another order.
	abandon := declareNow + `UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM ` + q + ` AS q` + dueHint + `
WHERE q.visible_at > @now AND q.visible_at <= ` + later("@now", "@for")
	t.abandon = abandon + ` AND q.lease_owner = @owner;`
	t.orphans = abandon + `
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));`

	t.restore = declareNow + fmt.Sprintf(`WITH hidden AS (
	SELECT TOP (%d) visible_at, lease_id FROM `, tablequeue.MaxSwept) + q + dueHint + `
	WHERE visible_at > @now AND (lease_id IS NULL AND visible_at <= ` + later("convert(datetime2(7), '19700101')", "@before") + `
		OR lease_id IS NOT NULL AND visible_at > ` + later("@now", "@leases") + `)
	ORDER BY visible_at, ` + key + `)
UPDATE hidden SET visible_at = CASE WHEN lease_id IS NULL THEN @now ELSE ` + later("visible_at", "@by") + ` END;` + selectCount

	t.take = `UPDATE ` + q + ` WITH (ROWLOCK) SET lease_id = @lease
WHERE ` + key + ` = @seq AND visible_at <= sysutcdatetime();`
}

// selectCount follows a statement and returns the number of changed rows, also on a server that is
// configured with NOCOUNT.
const selectCount = "\nSELECT @@ROWCOUNT;"

// removing sets the statements that remove rows which are not leased. They remove a bounded number
// of rows at a time, as each is locked until the statement ends.
func (t *table) removing(q string) {
	key := t.traits.key()
	t.cancel = `DELETE FROM ` + q + ` WITH (ROWLOCK) WHERE ` + key + ` = @seq AND delivery_count = 0;` + selectCount
	t.purge = declareNow + fmt.Sprintf(`WITH due AS (
	SELECT TOP (%d) %s, visible_at FROM `, tablequeue.MaxSwept, key) + q + dueHint + `
	WHERE visible_at <= @now ORDER BY visible_at, ` + key + `)
DELETE FROM due;` + selectCount
	t.sweep = declareNow + fmt.Sprintf(`DELETE TOP (%d) FROM `, tablequeue.MaxSwept) + q + ` WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE Expires IS NOT NULL AND Expires <= @now AND (lease_id IS NULL OR visible_at <= @now);` + selectCount
}

// unexpired is the condition on the rows that have not expired.
const unexpired = `(Expires IS NULL OR Expires > sysutcdatetime())`

// looking sets the statements that change nothing.
func (t *table) looking(q string) {
	key := t.traits.key()
	t.last = `SELECT coalesce(max(` + key + `), 0) FROM ` + q + lookHint

	t.browse = `SELECT TOP (@limit) ` + key + `, ` + t.traits.id("") + `, Headers, Body, delivery_count FROM ` + q + lookHint + `
WHERE ` + key + ` > @after AND ` + key + ` <= @last AND ` + unexpired + ` ORDER BY ` + key

	t.inspect = declareNow + `SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM ` + q + lookHint + ` WHERE Expires IS NULL OR Expires > @now;`
}

// rowList is the list of rows to insert. The bodies are one parameter.
const (
	rowList = `OPENJSON(@rows) WITH (` + rowParts + `) AS r`

	rowParts = `n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint`
)

const rowBody = `substring(@bodies, r.body_from, r.body_size)`

// inserting returns the statement that inserts rows. Their identities are in the order of the rows.
// Each row has a new Id: copies of one message share the id in their headers. With name, the rows
// have that column with that value.
func (t *table) inserting(q, name, value string) string {
	from := rowList
	if name != "" {
		from = namedList
	}
	declare, output, after := t.giving("inserted."+t.traits.key(), "seq", "seq bigint")
	return declareNow + declare + `INSERT INTO ` + q + ` (Headers, Body, visible_at, Expires` + name + `)
` + output + `
SELECT r.headers, ` + rowBody + `, due.moment,
	CASE WHEN r.ttl_us > 0 THEN ` + later("due.moment", "r.ttl_us") + ` END` + value + `
FROM ` + from + `
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN ` + later("@now", "r.after_us") + `
	ELSE ` + later("convert(datetime2(7), '19700101')", "r.at_us") + ` END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n` + after
}

// making sets the statements of the installer. The columns that begin with a capital are those of
// NServiceBus's queue tables, so that its endpoints can send to them and ServiceControl can receive
// from them; some are for that alone.
func (t *table) making(schema string, at place) {
	table := `object_id(` + literal(t.quoted) + `, N'U')`
	t.columns = `SELECT c.name FROM ` + at.database() + `sys.columns AS c WHERE c.object_id = ` + table

	t.create, t.createShared = t.creating(table, ""), t.creating(table, `,
		INDEX holdfast_id UNIQUE NONCLUSTERED (Id)`)

	// Only a queue of this transport is dropped, or gets a version.
	t.drop = `IF ` + table + ` IS NOT NULL AND col_length(` + literal(t.quoted) + `, N'lease_id') IS NULL
	THROW 50000, N'its table is not one of this transport: it is not removed', 1;
DROP TABLE IF EXISTS ` + t.quoted + `;`

	versions, name := quote(schema, dialect.VersionTable), literal(at.queue(schema))
	t.note = fmt.Sprintf(`IF EXISTS (SELECT 1 FROM %s WHERE name = %s AND version > %d)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(%s, N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM %[1]s WHERE name = %[2]s)
	INSERT INTO %[1]s (name, version) VALUES (%[2]s, CASE WHEN col_length(%[4]s, N'RowVersion') IS NULL THEN 1 ELSE %[3]d END);`, versions, name, tableVersion, literal(t.quoted))
	t.forget = `IF object_id(` + literal(versions) + `, N'U') IS NOT NULL DELETE FROM ` + versions + ` WHERE name = ` + name + `;`
}

// tableVersion is the version of the queue tables that this package creates. Version 1 has the key
// seq and an Id that is text.
const tableVersion = 2

// creating returns the statement that creates the missing table of a queue. index is a further
// index of it.
func (t *table) creating(table, index string) string {
	return `IF ` + table + ` IS NULL
BEGIN
	CREATE TABLE ` + t.quoted + ` (
		RowVersion bigint IDENTITY PRIMARY KEY CLUSTERED,
		Id uniqueidentifier NOT NULL DEFAULT newid(),
		CorrelationId varchar(255),
		ReplyToAddress varchar(255),
		Recoverable bit DEFAULT 1,
		Expires datetime2(7),
		Headers nvarchar(max) NOT NULL,
		Body varbinary(max),
		visible_at datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		delivery_count int NOT NULL DEFAULT 0,
		lease_id bigint,
		lease_owner nvarchar(max),
		last_error nvarchar(max),
		INDEX holdfast_due NONCLUSTERED (visible_at, RowVersion),
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL` + index + `);
	ALTER TABLE ` + t.quoted + ` SET (LOCK_ESCALATION = DISABLE);
END`
}

// foreign sets the statements on a queue table of NServiceBus. Its receivers lock the rows that
// they handle until they delete them: those are skipped. Its oldest tables have a Body of type
// image.
func (t *table) foreign(q string) {
	const locks = ` WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)`
	t.insert = t.insertingForeign(q)
	t.inspect = `SELECT count_big(*), 0, 0, 0 FROM ` + q + lookHint + ` WHERE ` + unexpired + `;`
	t.browse = `SELECT TOP (@limit) RowVersion, ` + t.traits.id("") + `, Headers, convert(varbinary(max), Body), 0 FROM ` + q + lookHint + `
WHERE RowVersion > @after AND RowVersion <= @last AND ` + unexpired + ` ORDER BY RowVersion`
	t.take = `DELETE FROM ` + q + locks + ` WHERE RowVersion = @seq AND Id = convert(uniqueidentifier, @id) AND ` + unexpired + `;` + selectCount
	t.purge = fmt.Sprintf(`DELETE TOP (%d) FROM `, tablequeue.MaxSwept) + q + locks + `;` + selectCount
}

// insertingForeign returns the statement that inserts rows into a foreign table.
func (t *table) insertingForeign(q string) string {
	column, value := "", ""
	if t.traits.recoverable {
		column, value = ", Recoverable", ", 1"
	}
	return declareNow + `INSERT INTO ` + q + ` (Id` + column + `, Expires, Headers, Body)
SELECT newid()` + value + `, CASE WHEN r.ttl_us > 0 THEN ` + later("@now", "r.ttl_us") + ` END, r.headers, ` + rowBody + `
FROM ` + rowList + `
ORDER BY r.n;`
}

// waiting sets the statements about locks of other sessions.
func (t *table) waiting(q string) {
	// An update lock on a row needs the lock on the table that an insert needs.
	t.try = noLockWait + `SELECT TOP (1) 1 FROM ` + q + ` WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK);`

	t.hasten = declareNow + `DECLARE @first datetime2(7) = (SELECT min(visible_at) FROM ` + q + lookHint + `);
UPDATE q SET visible_at = CASE WHEN @first < @now THEN @first ELSE @now END
FROM OPENJSON(@seqs) WITH (seq bigint '$') AS r
INNER LOOP JOIN ` + q + ` AS q WITH (ROWLOCK) ON q.` + t.traits.key() + ` = r.seq
WHERE q.lease_id IS NULL AND q.visible_at > @now;`
}

// namedList is [rowList] with the names of the rows.
const namedList = `OPENJSON(@rows) WITH (` + rowParts + `, [name] uniqueidentifier) AS r`

// naming sets the statements on rows with names. The index on their column finds each, whatever the
// statistics. vacate also locks the places of names that no row has, until the transaction ends, so
// that of two transactions that insert a name one waits for the other. The conditions on the column
// let the server use the index, which has one.
func (t *table) naming(q string) {
	t.vacate = `DELETE q FROM OPENJSON(@names) WITH ([name] uniqueidentifier '$') AS r
INNER LOOP JOIN ` + q + ` AS q WITH (INDEX (holdfast_timer), UPDLOCK, HOLDLOCK, ROWLOCK) ON q.timer = r.[name] AND q.timer IS NOT NULL;`
	t.insertNamed = t.inserting(q, ", timer", ", r.[name]")
	t.addNames = `IF col_length(` + literal(q) + `, N'lease_id') IS NOT NULL AND col_length(` + literal(q) + `, N'timer') IS NULL
	ALTER TABLE ` + q + ` ADD timer uniqueidentifier;`
	t.indexNames = `IF col_length(` + literal(q) + `, N'timer') IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = object_id(` + literal(q) + `, N'U') AND name = N'holdfast_timer')
	EXEC (` + literal(`CREATE UNIQUE NONCLUSTERED INDEX holdfast_timer ON `+q+` (timer) WHERE timer IS NOT NULL`) + `);`
}
