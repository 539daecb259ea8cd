package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// All statements of the SQL Server dialect. Lists are JSON parameters. A statement returns the numbers n, from 0, of
// the list's elements that hit a row. Durations are in microseconds.

const (
	// databaseAndLevel returns also the compatibility level, on which OPENJSON depends.
	databaseAndLevel = `SELECT db_name(), (SELECT d.compatibility_level FROM sys.databases AS d WHERE d.database_id = db_id())`

	databaseName = `SELECT db_name()`

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

	// leaseList and leaseRows are the rows that a statement names by key and lease. The loop join finds each by its key,
	// whatever the statistics.
	leaseList = `OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN `
	leaseRows = ` AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease`

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
}

// table is a queue's table with its statements.
type table struct {
	quoted string
	traits traits
	claim, renew, update, remove, insert,
	abandon, orphans, cancel, take, sweep, purge,
	last, browse, inspect, columns, create, note, drop, forget,
	try, hasten string
}

func newTable(schema string, at place, traits traits) *table {
	t := &table{quoted: at.quoted(), traits: traits}
	t.leasing(t.quoted)
	t.removing(t.quoted)
	t.looking(t.quoted)
	t.waiting(t.quoted)
	t.making(schema, at)
	t.insert = t.inserting(t.quoted)
	if traits.foreign {
		t.insert = t.insertingForeign(t.quoted)
	}
	return t
}

// giving returns the parts of a statement on q that return values of the rows which it hits. On a table with triggers
// they are columns of a table variable.
func (t *table) giving(values, hit, columns string) (declare, output, after string) {
	if !t.traits.triggers {
		return "", "OUTPUT " + values, ";"
	}
	return "DECLARE @hit TABLE (" + columns + ");\n", "OUTPUT " + values + " INTO @hit", ";\nSELECT " + hit + " FROM @hit;"
}

// leasing sets the statements that lease rows and settle leased rows. A character of headers has two bytes, where
// UTF-8 may have three.
func (t *table) leasing(q string) {
	declare, output, after := t.giving(`inserted.seq, inserted.Id, inserted.Headers, inserted.Body, inserted.delivery_count,
	CASE WHEN inserted.Expires <= @now THEN 1 ELSE 0 END`, `seq, id, headers, body, delivery_count, expired`,
		`seq bigint, id nvarchar(max), headers nvarchar(max), body varbinary(max), delivery_count int, expired int`)
	t.claim = declareNow + declare + `WITH due AS (
	SELECT TOP (@limit) seq, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner,
		datalength(Headers) * 3 / 2 + coalesce(datalength(Body), 0) AS size
	FROM ` + q + dueHint + `
	WHERE visible_at <= @now ORDER BY visible_at, seq),
fit AS (
	SELECT seq, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner, size,
		sum(size) OVER (ORDER BY visible_at, seq ROWS UNBOUNDED PRECEDING) AS total
	FROM due)
UPDATE fit SET delivery_count = delivery_count + 1, visible_at = ` + later("@now", "@for") + `,
	lease_id = @lease, lease_owner = @owner
` + output + `
WHERE total <= @bytes OR total = size` + after + `
IF @@ROWCOUNT = 0
	SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE visible_at > @now ORDER BY visible_at, seq;`

	declare, output, after = t.giving("r.n", "n", "n int")
	t.renew = declareNow + declare + `UPDATE q SET visible_at = ` + later("@now", "@for") + `
` + output + ` FROM ` + leaseList + q + leaseRows + after

	t.update = declareNow + declare + `UPDATE q SET visible_at = ` + later("@now", "r.after_us") + `,
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL, last_error = coalesce(r.note, q.last_error)
` + output + ` FROM ` + leaseList + q + leaseRows + after

	t.remove = declare + `DELETE q ` + output + ` FROM ` + leaseList + q + leaseRows + after

	// Locked rows are skipped: other sessions lock rows in another order.
	abandon := declareNow + `UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM ` + q + ` AS q` + dueHint + `
WHERE q.visible_at > @now AND q.visible_at <= ` + later("@now", "@for")
	t.abandon = abandon + ` AND q.lease_owner = @owner;`
	t.orphans = abandon + `
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));`

	t.take = `UPDATE ` + q + ` WITH (ROWLOCK) SET lease_id = @lease
WHERE seq = @seq AND visible_at <= sysutcdatetime();`
}

// selectCount follows a statement and returns the number of changed rows, also on a server that is configured with
// NOCOUNT.
const selectCount = "\nSELECT @@ROWCOUNT;"

// removing sets the statements that remove rows which are not leased. They remove a bounded number of rows at a time,
// as each is locked until the statement ends.
func (t *table) removing(q string) {
	t.cancel = `DELETE FROM ` + q + ` WITH (ROWLOCK) WHERE seq = @seq AND delivery_count = 0;` + selectCount
	t.purge = declareNow + fmt.Sprintf(`WITH due AS (
	SELECT TOP (%d) seq, visible_at FROM `, tablequeue.MaxSwept) + q + dueHint + `
	WHERE visible_at <= @now ORDER BY visible_at, seq)
DELETE FROM due;` + selectCount
	t.sweep = declareNow + fmt.Sprintf(`DELETE TOP (%d) FROM `, tablequeue.MaxSwept) + q + ` WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE Expires IS NOT NULL AND Expires <= @now AND (lease_id IS NULL OR visible_at <= @now);` + selectCount
}

// looking sets the statements that change nothing.
func (t *table) looking(q string) {
	t.last = `SELECT coalesce(max(seq), 0) FROM ` + q + lookHint

	t.browse = `SELECT TOP (@limit) seq, Id, Headers, Body, delivery_count FROM ` + q + lookHint + `
WHERE seq > @after AND seq <= @last AND (Expires IS NULL OR Expires > sysutcdatetime()) ORDER BY seq`

	t.inspect = declareNow + `SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM ` + q + lookHint + ` WHERE Expires IS NULL OR Expires > @now;`
	if t.traits.foreign {
		t.inspect = `SELECT count_big(*), 0, 0, 0 FROM ` + q + lookHint + ` WHERE Expires IS NULL OR Expires > sysutcdatetime();`
	}
}

// rowList is the list of rows to insert. The bodies are one parameter.
const rowList = `OPENJSON(@rows) WITH (n int, id nvarchar(max), headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r`

const rowBody = `substring(@bodies, r.body_from, r.body_size)`

// inserting returns the statement that inserts rows. Their identities are in the order of the rows.
func (t *table) inserting(q string) string {
	declare, output, after := t.giving("inserted.seq", "seq", "seq bigint")
	return declareNow + declare + `INSERT INTO ` + q + ` (Id, Headers, Body, visible_at, Expires)
` + output + `
SELECT r.id, r.headers, ` + rowBody + `, due.moment,
	CASE WHEN r.ttl_us > 0 THEN ` + later("due.moment", "r.ttl_us") + ` END
FROM ` + rowList + `
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN ` + later("@now", "r.after_us") + `
	ELSE ` + later("convert(datetime2(7), '19700101')", "r.at_us") + ` END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n` + after
}

// insertingForeign returns the statement that inserts rows into a foreign table.
func (t *table) insertingForeign(q string) string {
	column, value := "", ""
	if t.traits.recoverable {
		column, value = ", Recoverable", ", 1"
	}
	return declareNow + `INSERT INTO ` + q + ` (Id` + column + `, Expires, Headers, Body)
SELECT convert(uniqueidentifier, r.id)` + value + `, CASE WHEN r.ttl_us > 0 THEN ` + later("@now", "r.ttl_us") + ` END, r.headers, ` + rowBody + `
FROM ` + rowList + `
ORDER BY r.n;`
}

// making sets the statements of the installer. The columns that begin with a capital are those of NServiceBus's queue
// tables, so that its endpoints can send to them; some are for that alone.
func (t *table) making(schema string, at place) {
	of := ""
	if at.catalog != "" {
		of = bracket(at.catalog) + "."
	}
	table := `object_id(` + literal(t.quoted) + `, N'U')`
	t.columns = `SELECT c.name FROM ` + of + `sys.columns AS c WHERE c.object_id = ` + table

	t.create = `IF ` + table + ` IS NULL
BEGIN
	CREATE TABLE ` + t.quoted + ` (
		seq bigint IDENTITY PRIMARY KEY CLUSTERED,
		Id nvarchar(max) NOT NULL DEFAULT convert(nvarchar(36), newid()),
		CorrelationId varchar(255),
		ReplyToAddress varchar(255),
		Recoverable bit,
		Expires datetime2(7),
		Headers nvarchar(max) NOT NULL,
		Body varbinary(max),
		visible_at datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		delivery_count int NOT NULL DEFAULT 0,
		lease_id bigint,
		lease_owner nvarchar(max),
		last_error nvarchar(max),
		INDEX holdfast_due NONCLUSTERED (visible_at, seq),
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL);
	ALTER TABLE ` + t.quoted + ` SET (LOCK_ESCALATION = DISABLE);
END`

	// Only a queue of this transport is dropped, or gets a version.
	t.drop = `IF ` + table + ` IS NOT NULL AND col_length(` + literal(t.quoted) + `, N'lease_id') IS NULL
	THROW 50000, N'its table is not one of this transport: it is not removed', 1;
DROP TABLE IF EXISTS ` + t.quoted + `;`

	versions, name := quote(schema, dialect.VersionTable), literal(at.queue(schema))
	t.note = fmt.Sprintf(`IF EXISTS (SELECT 1 FROM %s WHERE name = %s AND version > %d)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(%s, N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM %[1]s WHERE name = %[2]s)
	INSERT INTO %[1]s (name, version) VALUES (%[2]s, %[3]d);`, versions, name, tableVersion, literal(t.quoted))
	t.forget = `IF object_id(` + literal(versions) + `, N'U') IS NOT NULL DELETE FROM ` + versions + ` WHERE name = ` + name + `;`
}

// tableVersion is the version of the queue tables that this package creates.
const tableVersion = 1
