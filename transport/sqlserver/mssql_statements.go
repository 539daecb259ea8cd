package sqlserver

import "strings"

// The statements of the SQL Server dialect, all of them. Lists come as JSON, with the number n of each
// element, from 0, in the result of those that hit; durations as microseconds.

const (
	mssqlDatabase = `SELECT db_name()`

	// mssqlSave and mssqlUndo are a savepoint in a transaction of somebody else's.
	mssqlSave = `SAVE TRANSACTION holdfast_send`
	mssqlUndo = `ROLLBACK TRANSACTION holdfast_send`

	// mssqlInstallLock is held until the transaction ends.
	mssqlInstallLock = `DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
IF @got < 0 THROW 50000, N'another installer has been at work for a minute', 1;`

	mssqlTableExists = `SELECT count(*) WHERE object_id(@name, N'U') IS NOT NULL`

	mssqlQueues = `SELECT t.name FROM sys.tables AS t WHERE t.schema_id = schema_id(@schema) AND 3 = (
	SELECT count(*) FROM sys.columns AS c
	WHERE c.object_id = t.object_id AND c.name IN (N'visible_at', N'delivery_count', N'lease_id'))
ORDER BY t.name`
)

const (
	mssqlNow = "DECLARE @now datetime2(7) = sysutcdatetime();\n"

	// leases are the rows that a statement names, by key and lease. The loop finds each by
	// its key, whatever the statistics say.
	mssqlLeases = `OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]') AS r
INNER LOOP JOIN `
	mssqlLeased = ` AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease`

	// Who looks neither waits for what others have locked nor sees it, also where the database keeps
	// row versions for readers.
	mssqlLook = ` WITH (READPAST, READCOMMITTEDLOCK)`
)

// mssqlLater is the moment us microseconds after at. dateadd takes no more than an int at a time.
func mssqlLater(at, us string) string {
	return "dateadd(microsecond, " + us + " % 1000000, dateadd(second, " + us + " / 1000000 % 86400, dateadd(day, " +
		us + " / 1000000 / 86400, " + at + ")))"
}

// mssqlTable is a queue's table with its statements.
type mssqlTable struct {
	quoted string
	claim, renew, update, remove, insert,
	abandon, orphans, cancel, take,
	last, browse, inspect, purge, create string
}

func newMSSQLTable(schema, queue string) *mssqlTable {
	q := mssqlQuote(schema, queue)
	t := &mssqlTable{quoted: q}
	t.leasing(q)
	t.looking(q)

	t.create = `IF object_id(` + mssqlText(q) + `, N'U') IS NULL
BEGIN
	CREATE TABLE ` + q + ` (
		seq bigint IDENTITY PRIMARY KEY CLUSTERED,
		id nvarchar(max) NOT NULL DEFAULT convert(nvarchar(36), newid()),
		headers nvarchar(max) NOT NULL,
		body varbinary(max),
		visible_at datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		expires_at datetime2(7),
		delivery_count int NOT NULL DEFAULT 0,
		lease_id bigint,
		lease_owner nvarchar(max),
		last_error nvarchar(max),
		INDEX holdfast_due NONCLUSTERED (visible_at, seq));
	ALTER TABLE ` + q + ` SET (LOCK_ESCALATION = DISABLE);
END`

	// Identities are given in the order of the rows. The bodies come as one parameter.
	t.insert = mssqlNow + `INSERT INTO ` + q + ` (id, headers, body, visible_at, expires_at)
OUTPUT inserted.seq
SELECT r.id, r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN ` + mssqlLater("due.moment", "r.ttl_us") + ` END
FROM OPENJSON(@rows) WITH (n int, id nvarchar(max), headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN ` + mssqlLater("@now", "r.after_us") + `
	ELSE ` + mssqlLater("convert(datetime2(7), '19700101')", "r.at_us") + ` END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;`
	return t
}

// leasing are the statements that lease rows and settle what is leased.
func (t *mssqlTable) leasing(q string) {
	byDue := q + ` AS q WITH (INDEX (holdfast_due), ROWLOCK)`
	t.claim = mssqlNow + `WITH due AS (
	SELECT TOP (@limit) seq, id, headers, body, visible_at, expires_at, delivery_count, lease_id, lease_owner
	FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, seq)
UPDATE due SET delivery_count = delivery_count + 1, visible_at = ` + mssqlLater("@now", "@for") + `,
	lease_id = @lease, lease_owner = @owner
OUTPUT inserted.seq, inserted.id, inserted.headers, inserted.body, inserted.delivery_count,
	CASE WHEN inserted.expires_at <= @now THEN 1 ELSE 0 END;
IF @@ROWCOUNT = 0
	SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE visible_at > @now ORDER BY visible_at, seq;`

	t.renew = mssqlNow + `UPDATE q SET visible_at = ` + mssqlLater("@now", "@for") + `
OUTPUT r.n FROM ` + mssqlLeases + q + mssqlLeased + `;`

	t.update = mssqlNow + `UPDATE q SET visible_at = ` + mssqlLater("@now", "r.after_us") + `,
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL
OUTPUT r.n FROM ` + mssqlLeases + q + mssqlLeased + `;`

	t.remove = `DELETE q OUTPUT r.n FROM ` + mssqlLeases + q + mssqlLeased + `;`

	giveBack := mssqlNow + `UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM ` + byDue + `
WHERE q.visible_at > @now AND q.visible_at <= ` + mssqlLater("@now", "@for")
	t.abandon = giveBack + ` AND q.lease_owner = @owner;`
	t.orphans = giveBack + `
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));`

	t.cancel = `DELETE FROM ` + q + ` WITH (ROWLOCK) WHERE seq = @seq AND delivery_count = 0;`
	// Little by little, as each row is locked until the statement ends.
	t.purge = `DELETE TOP (5000) FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE visible_at <= sysutcdatetime();`

	t.take = `UPDATE ` + q + ` WITH (ROWLOCK) SET lease_id = @lease
WHERE seq = @seq AND visible_at <= sysutcdatetime();`
}

// looking are the statements that change nothing.
func (t *mssqlTable) looking(q string) {
	t.last = `SELECT coalesce(max(seq), 0) FROM ` + q + mssqlLook

	t.browse = `SELECT TOP (@limit) seq, id, headers, body, delivery_count FROM ` + q + mssqlLook + `
WHERE seq > @after AND seq <= @last AND (expires_at IS NULL OR expires_at > sysutcdatetime()) ORDER BY seq`

	t.inspect = mssqlNow + `SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM ` + q + mssqlLook + ` WHERE expires_at IS NULL OR expires_at > @now;`
}

// mssqlSchema makes a schema that is missing: that statement must be alone in its batch.
func mssqlSchema(schema string) string {
	return `IF schema_id(` + mssqlText(schema) + `) IS NULL EXEC (` + mssqlText("CREATE SCHEMA "+bracket(schema)) + `);`
}

// mssqlSubscriptions are the statements on the table of subscriptions. Types differ by case, whatever
// the database's collation says.
type mssqlSubscriptions struct{ create, add, remove, all string }

// maxMSSQLType is the longest name of a type: with the queue's it is a key, which has at most 900 bytes.
const maxMSSQLType = 300

func newMSSQLSubscriptions(schema string) mssqlSubscriptions {
	q := mssqlQuote(schema, subscriptionTable)
	const (
		types = `OPENJSON(@types) WITH (type nvarchar(300) '$') AS r`
		exact = `r.type COLLATE Latin1_General_BIN2`
	)
	return mssqlSubscriptions{
		create: `IF object_id(` + mssqlText(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		type nvarchar(300) COLLATE Latin1_General_BIN2 NOT NULL,
		queue nvarchar(128) COLLATE Latin1_General_BIN2 NOT NULL,
		PRIMARY KEY (type, queue));`,
		add: `INSERT INTO ` + q + ` (type, queue)
SELECT DISTINCT ` + exact + `, @queue FROM ` + types + `
WHERE NOT EXISTS (SELECT 1 FROM ` + q + ` AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.type = ` + exact + ` AND s.queue = @queue);`,
		remove: `DELETE FROM ` + q + ` WHERE queue = @queue AND type IN (SELECT ` + exact + ` FROM ` + types + `);`,
		all:    `SELECT type, queue FROM ` + q + ` ORDER BY type, queue`,
	}
}

// bracket makes name an identifier, whatever is in it.
func bracket(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func mssqlQuote(schema, name string) string { return bracket(schema) + "." + bracket(name) }

// mssqlText is s as a literal.
func mssqlText(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }
