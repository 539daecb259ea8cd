-- database
SELECT db_name(), (SELECT d.compatibility_level FROM sys.databases AS d WHERE d.database_id = db_id())

-- name of the database
SELECT db_name()

-- time of the database
SELECT sysutcdatetime()

-- whether the database takes writes
SELECT convert(nvarchar(128), databasepropertyex(db_name(), N'Updateability'))

-- save
SAVE TRANSACTION holdfast_send

-- undo
ROLLBACK TRANSACTION holdfast_send

-- install lock
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000;
IF @got < 0 THROW 50000, N'another installer has been at work for a minute', 1;

-- schema
IF schema_id(N'my''s [schema]') IS NULL EXEC (N'CREATE SCHEMA [my''s [schema]]]');

-- queues
SELECT t.name FROM sys.tables AS t WHERE t.schema_id = schema_id(@schema) AND 3 = (
	SELECT count(*) FROM sys.columns AS c
	WHERE c.object_id = t.object_id AND c.name IN (N'visible_at', N'delivery_count', N'lease_id'))
ORDER BY t.name

-- missing queues
SELECT r.n FROM OPENJSON(@names) WITH (n int '$[0]', name nvarchar(max) '$[1]') AS r
WHERE object_id(r.name) IS NULL

-- before a write
SET LOCK_TIMEOUT 100;

-- before a write that waits
SET LOCK_TIMEOUT 1000;

-- queue quoted
[my's [schema]]].[Sales."Orders"]]'--]

-- queue claim
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (@limit) RowVersion, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner,
		datalength(Headers) * 3 / 2 + coalesce(datalength(Body), 0) AS size
	FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, RowVersion),
fit AS (
	SELECT RowVersion, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner, size,
		sum(size) OVER (ORDER BY visible_at, RowVersion ROWS UNBOUNDED PRECEDING) AS total
	FROM due)
UPDATE fit SET delivery_count = delivery_count + 1, visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))),
	lease_id = @lease, lease_owner = @owner
OUTPUT inserted.RowVersion, lower(convert(nvarchar(36), inserted.Id)), inserted.Headers, inserted.Body,
	inserted.delivery_count, CASE WHEN inserted.Expires <= @now THEN 1 ELSE 0 END
WHERE total <= @bytes OR total = size;
DECLARE @claimed int = @@ROWCOUNT;
SELECT @now, (SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE @claimed = 0 AND visible_at > @now ORDER BY visible_at, RowVersion);

-- queue renew
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;

-- queue update
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now))),
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL, last_error = coalesce(r.note, q.last_error)
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;

-- queue remove
DELETE q OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;

-- queue insert
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [my's [schema]]].[Sales."Orders"]]'--] (Headers, Body, visible_at, Expires)
OUTPUT inserted.RowVersion
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;

-- queue restore
DECLARE @now datetime2(7) = sysutcdatetime();
WITH hidden AS (
	SELECT TOP (1000) visible_at, lease_id FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at > @now AND (lease_id IS NULL AND visible_at <= dateadd(microsecond, @before % 1000000, dateadd(second, @before / 1000000 % 86400, dateadd(day, @before / 1000000 / 86400, convert(datetime2(7), '19700101'))))
		OR lease_id IS NOT NULL AND visible_at > dateadd(microsecond, @leases % 1000000, dateadd(second, @leases / 1000000 % 86400, dateadd(day, @leases / 1000000 / 86400, @now))))
	ORDER BY visible_at, RowVersion)
UPDATE hidden SET visible_at = CASE WHEN lease_id IS NULL THEN @now ELSE dateadd(microsecond, @by % 1000000, dateadd(second, @by / 1000000 % 86400, dateadd(day, @by / 1000000 / 86400, visible_at))) END;
SELECT @@ROWCOUNT;

-- queue abandon
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))) AND q.lease_owner = @owner;

-- queue orphans
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));

-- queue cancel
DELETE FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (ROWLOCK) WHERE RowVersion = @seq AND delivery_count = 0;
SELECT @@ROWCOUNT;

-- queue take
UPDATE [my's [schema]]].[Sales."Orders"]]'--] WITH (ROWLOCK) SET lease_id = @lease
WHERE RowVersion = @seq AND visible_at <= sysutcdatetime();

-- queue sweep
DECLARE @now datetime2(7) = sysutcdatetime();
DELETE TOP (1000) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE Expires IS NOT NULL AND Expires <= @now AND (lease_id IS NULL OR visible_at <= @now);
SELECT @@ROWCOUNT;

-- queue purge
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (1000) RowVersion, visible_at FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, RowVersion)
DELETE FROM due;
SELECT @@ROWCOUNT;

-- queue last
SELECT coalesce(max(RowVersion), 0) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)

-- queue browse
SELECT TOP (@limit) RowVersion, lower(convert(nvarchar(36), Id)), Headers, Body, delivery_count FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > @after AND RowVersion <= @last AND (Expires IS NULL OR Expires > sysutcdatetime()) ORDER BY RowVersion

-- queue inspect
DECLARE @now datetime2(7) = sysutcdatetime();
SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK) WHERE Expires IS NULL OR Expires > @now;

-- queue columns
SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')

-- queue create
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NULL
BEGIN
	CREATE TABLE [my's [schema]]].[Sales."Orders"]]'--] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL);
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] SET (LOCK_ESCALATION = DISABLE);
END

-- queue createShared
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NULL
BEGIN
	CREATE TABLE [my's [schema]]].[Sales."Orders"]]'--] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL,
		INDEX holdfast_id UNIQUE NONCLUSTERED (Id));
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] SET (LOCK_ESCALATION = DISABLE);
END

-- queue note
IF EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_tables] WHERE name = N'Sales."Orders"]''--' AND version > 2)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_tables] WHERE name = N'Sales."Orders"]''--')
	INSERT INTO [my's [schema]]].[holdfast_tables] (name, version) VALUES (N'Sales."Orders"]''--', CASE WHEN col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'RowVersion') IS NULL THEN 1 ELSE 2 END);

-- queue drop
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NULL
	THROW 50000, N'its table is not one of this transport: it is not removed', 1;
DROP TABLE IF EXISTS [my's [schema]]].[Sales."Orders"]]'--];

-- queue forget
IF object_id(N'[my''s [schema]]].[holdfast_tables]', N'U') IS NOT NULL DELETE FROM [my's [schema]]].[holdfast_tables] WHERE name = N'Sales."Orders"]''--';

-- queue try
SET LOCK_TIMEOUT 0;
SELECT TOP (1) 1 FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK);

-- queue hasten
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @first datetime2(7) = (SELECT min(visible_at) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK));
UPDATE q SET visible_at = CASE WHEN @first < @now THEN @first ELSE @now END
FROM OPENJSON(@seqs) WITH (seq bigint '$') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq
WHERE q.lease_id IS NULL AND q.visible_at > @now;

-- queue vacate
DELETE q FROM OPENJSON(@names) WITH ([name] uniqueidentifier '$') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_timer), UPDLOCK, HOLDLOCK, ROWLOCK) ON q.timer = r.[name] AND q.timer IS NOT NULL;

-- queue insertNamed
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [my's [schema]]].[Sales."Orders"]]'--] (Headers, Body, visible_at, Expires, timer)
OUTPUT inserted.RowVersion
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END, r.[name]
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint, [name] uniqueidentifier) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;

-- queue addNames
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'timer') IS NULL
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD timer uniqueidentifier;

-- queue indexNames
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'timer') IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND name = N'holdfast_timer')
	EXEC (N'CREATE UNIQUE NONCLUSTERED INDEX holdfast_timer ON [my''s [schema]]].[Sales."Orders"]]''--] (timer) WHERE timer IS NOT NULL');

-- queue with triggers quoted
[dbo].[q]

-- queue with triggers claim
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @hit TABLE (seq bigint, id nvarchar(max), headers nvarchar(max), body varbinary(max), delivery_count int, expired int);
WITH due AS (
	SELECT TOP (@limit) RowVersion, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner,
		datalength(Headers) * 3 / 2 + coalesce(datalength(Body), 0) AS size
	FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, RowVersion),
fit AS (
	SELECT RowVersion, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner, size,
		sum(size) OVER (ORDER BY visible_at, RowVersion ROWS UNBOUNDED PRECEDING) AS total
	FROM due)
UPDATE fit SET delivery_count = delivery_count + 1, visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))),
	lease_id = @lease, lease_owner = @owner
OUTPUT inserted.RowVersion, lower(convert(nvarchar(36), inserted.Id)), inserted.Headers, inserted.Body,
	inserted.delivery_count, CASE WHEN inserted.Expires <= @now THEN 1 ELSE 0 END INTO @hit
WHERE total <= @bytes OR total = size;
SELECT seq, id, headers, body, delivery_count, expired FROM @hit;
DECLARE @claimed int = @@ROWCOUNT;
SELECT @now, (SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE @claimed = 0 AND visible_at > @now ORDER BY visible_at, RowVersion);

-- queue with triggers renew
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @hit TABLE (n int);
UPDATE q SET visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
OUTPUT r.n INTO @hit FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;
SELECT n FROM @hit;

-- queue with triggers update
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @hit TABLE (n int);
UPDATE q SET visible_at = dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now))),
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL, last_error = coalesce(r.note, q.last_error)
OUTPUT r.n INTO @hit FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;
SELECT n FROM @hit;

-- queue with triggers remove
DECLARE @hit TABLE (n int);
DELETE q OUTPUT r.n INTO @hit FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq AND q.lease_id = r.lease;
SELECT n FROM @hit;

-- queue with triggers insert
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @hit TABLE (seq bigint);
INSERT INTO [dbo].[q] (Headers, Body, visible_at, Expires)
OUTPUT inserted.RowVersion INTO @hit
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;
SELECT seq FROM @hit;

-- queue with triggers restore
DECLARE @now datetime2(7) = sysutcdatetime();
WITH hidden AS (
	SELECT TOP (1000) visible_at, lease_id FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at > @now AND (lease_id IS NULL AND visible_at <= dateadd(microsecond, @before % 1000000, dateadd(second, @before / 1000000 % 86400, dateadd(day, @before / 1000000 / 86400, convert(datetime2(7), '19700101'))))
		OR lease_id IS NOT NULL AND visible_at > dateadd(microsecond, @leases % 1000000, dateadd(second, @leases / 1000000 % 86400, dateadd(day, @leases / 1000000 / 86400, @now))))
	ORDER BY visible_at, RowVersion)
UPDATE hidden SET visible_at = CASE WHEN lease_id IS NULL THEN @now ELSE dateadd(microsecond, @by % 1000000, dateadd(second, @by / 1000000 % 86400, dateadd(day, @by / 1000000 / 86400, visible_at))) END;
SELECT @@ROWCOUNT;

-- queue with triggers abandon
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [dbo].[q] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))) AND q.lease_owner = @owner;

-- queue with triggers orphans
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [dbo].[q] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));

-- queue with triggers cancel
DELETE FROM [dbo].[q] WITH (ROWLOCK) WHERE RowVersion = @seq AND delivery_count = 0;
SELECT @@ROWCOUNT;

-- queue with triggers take
UPDATE [dbo].[q] WITH (ROWLOCK) SET lease_id = @lease
WHERE RowVersion = @seq AND visible_at <= sysutcdatetime();

-- queue with triggers sweep
DECLARE @now datetime2(7) = sysutcdatetime();
DELETE TOP (1000) FROM [dbo].[q] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE Expires IS NOT NULL AND Expires <= @now AND (lease_id IS NULL OR visible_at <= @now);
SELECT @@ROWCOUNT;

-- queue with triggers purge
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (1000) RowVersion, visible_at FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, RowVersion)
DELETE FROM due;
SELECT @@ROWCOUNT;

-- queue with triggers last
SELECT coalesce(max(RowVersion), 0) FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK)

-- queue with triggers browse
SELECT TOP (@limit) RowVersion, lower(convert(nvarchar(36), Id)), Headers, Body, delivery_count FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK)
WHERE RowVersion > @after AND RowVersion <= @last AND (Expires IS NULL OR Expires > sysutcdatetime()) ORDER BY RowVersion

-- queue with triggers inspect
DECLARE @now datetime2(7) = sysutcdatetime();
SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK) WHERE Expires IS NULL OR Expires > @now;

-- queue with triggers columns
SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[q]', N'U')

-- queue with triggers create
IF object_id(N'[dbo].[q]', N'U') IS NULL
BEGIN
	CREATE TABLE [dbo].[q] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL);
	ALTER TABLE [dbo].[q] SET (LOCK_ESCALATION = DISABLE);
END

-- queue with triggers createShared
IF object_id(N'[dbo].[q]', N'U') IS NULL
BEGIN
	CREATE TABLE [dbo].[q] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL,
		INDEX holdfast_id UNIQUE NONCLUSTERED (Id));
	ALTER TABLE [dbo].[q] SET (LOCK_ESCALATION = DISABLE);
END

-- queue with triggers note
IF EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q' AND version > 2)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(N'[dbo].[q]', N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q')
	INSERT INTO [dbo].[holdfast_tables] (name, version) VALUES (N'q', CASE WHEN col_length(N'[dbo].[q]', N'RowVersion') IS NULL THEN 1 ELSE 2 END);

-- queue with triggers drop
IF object_id(N'[dbo].[q]', N'U') IS NOT NULL AND col_length(N'[dbo].[q]', N'lease_id') IS NULL
	THROW 50000, N'its table is not one of this transport: it is not removed', 1;
DROP TABLE IF EXISTS [dbo].[q];

-- queue with triggers forget
IF object_id(N'[dbo].[holdfast_tables]', N'U') IS NOT NULL DELETE FROM [dbo].[holdfast_tables] WHERE name = N'q';

-- queue with triggers try
SET LOCK_TIMEOUT 0;
SELECT TOP (1) 1 FROM [dbo].[q] WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK);

-- queue with triggers hasten
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @first datetime2(7) = (SELECT min(visible_at) FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK));
UPDATE q SET visible_at = CASE WHEN @first < @now THEN @first ELSE @now END
FROM OPENJSON(@seqs) WITH (seq bigint '$') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq
WHERE q.lease_id IS NULL AND q.visible_at > @now;

-- queue with triggers vacate
DELETE q FROM OPENJSON(@names) WITH ([name] uniqueidentifier '$') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (INDEX (holdfast_timer), UPDLOCK, HOLDLOCK, ROWLOCK) ON q.timer = r.[name] AND q.timer IS NOT NULL;

-- queue with triggers insertNamed
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @hit TABLE (seq bigint);
INSERT INTO [dbo].[q] (Headers, Body, visible_at, Expires, timer)
OUTPUT inserted.RowVersion INTO @hit
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END, r.[name]
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint, [name] uniqueidentifier) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;
SELECT seq FROM @hit;

-- queue with triggers addNames
IF col_length(N'[dbo].[q]', N'lease_id') IS NOT NULL AND col_length(N'[dbo].[q]', N'timer') IS NULL
	ALTER TABLE [dbo].[q] ADD timer uniqueidentifier;

-- queue with triggers indexNames
IF col_length(N'[dbo].[q]', N'timer') IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = object_id(N'[dbo].[q]', N'U') AND name = N'holdfast_timer')
	EXEC (N'CREATE UNIQUE NONCLUSTERED INDEX holdfast_timer ON [dbo].[q] (timer) WHERE timer IS NOT NULL');

-- send to a queue of NServiceBus's in another database
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [other].[nsb].[q] (Id, Recoverable, Expires, Headers, Body)
SELECT newid(), 1, CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, @now))) END, r.headers, substring(@bodies, r.body_from, r.body_size)
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
ORDER BY r.n;

-- inspect a queue of NServiceBus's
SELECT count_big(*), 0, 0, 0 FROM [other].[nsb].[q] WITH (READPAST, READCOMMITTEDLOCK) WHERE (Expires IS NULL OR Expires > sysutcdatetime());

-- queue of version 1 quoted
[dbo].[q]

-- queue of version 1 claim
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (@limit) seq, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner,
		datalength(Headers) * 3 / 2 + coalesce(datalength(Body), 0) AS size
	FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, seq),
fit AS (
	SELECT seq, Id, Headers, Body, visible_at, Expires, delivery_count, lease_id, lease_owner, size,
		sum(size) OVER (ORDER BY visible_at, seq ROWS UNBOUNDED PRECEDING) AS total
	FROM due)
UPDATE fit SET delivery_count = delivery_count + 1, visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))),
	lease_id = @lease, lease_owner = @owner
OUTPUT inserted.seq, inserted.Id, inserted.Headers, inserted.Body,
	inserted.delivery_count, CASE WHEN inserted.Expires <= @now THEN 1 ELSE 0 END
WHERE total <= @bytes OR total = size;
DECLARE @claimed int = @@ROWCOUNT;
SELECT @now, (SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE @claimed = 0 AND visible_at > @now ORDER BY visible_at, seq);

-- queue of version 1 renew
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue of version 1 update
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now))),
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL, last_error = coalesce(r.note, q.last_error)
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue of version 1 remove
DELETE q OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]', note nvarchar(max) '$[5]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue of version 1 insert
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [dbo].[q] (Headers, Body, visible_at, Expires)
OUTPUT inserted.seq
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;

-- queue of version 1 restore
DECLARE @now datetime2(7) = sysutcdatetime();
WITH hidden AS (
	SELECT TOP (1000) visible_at, lease_id FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at > @now AND (lease_id IS NULL AND visible_at <= dateadd(microsecond, @before % 1000000, dateadd(second, @before / 1000000 % 86400, dateadd(day, @before / 1000000 / 86400, convert(datetime2(7), '19700101'))))
		OR lease_id IS NOT NULL AND visible_at > dateadd(microsecond, @leases % 1000000, dateadd(second, @leases / 1000000 % 86400, dateadd(day, @leases / 1000000 / 86400, @now))))
	ORDER BY visible_at, seq)
UPDATE hidden SET visible_at = CASE WHEN lease_id IS NULL THEN @now ELSE dateadd(microsecond, @by % 1000000, dateadd(second, @by / 1000000 % 86400, dateadd(day, @by / 1000000 / 86400, visible_at))) END;
SELECT @@ROWCOUNT;

-- queue of version 1 abandon
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [dbo].[q] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))) AND q.lease_owner = @owner;

-- queue of version 1 orphans
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [dbo].[q] AS q WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));

-- queue of version 1 cancel
DELETE FROM [dbo].[q] WITH (ROWLOCK) WHERE seq = @seq AND delivery_count = 0;
SELECT @@ROWCOUNT;

-- queue of version 1 take
UPDATE [dbo].[q] WITH (ROWLOCK) SET lease_id = @lease
WHERE seq = @seq AND visible_at <= sysutcdatetime();

-- queue of version 1 sweep
DECLARE @now datetime2(7) = sysutcdatetime();
DELETE TOP (1000) FROM [dbo].[q] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE Expires IS NOT NULL AND Expires <= @now AND (lease_id IS NULL OR visible_at <= @now);
SELECT @@ROWCOUNT;

-- queue of version 1 purge
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (1000) seq, visible_at FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, seq)
DELETE FROM due;
SELECT @@ROWCOUNT;

-- queue of version 1 last
SELECT coalesce(max(seq), 0) FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK)

-- queue of version 1 browse
SELECT TOP (@limit) seq, Id, Headers, Body, delivery_count FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK)
WHERE seq > @after AND seq <= @last AND (Expires IS NULL OR Expires > sysutcdatetime()) ORDER BY seq

-- queue of version 1 inspect
DECLARE @now datetime2(7) = sysutcdatetime();
SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK) WHERE Expires IS NULL OR Expires > @now;

-- queue of version 1 columns
SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[q]', N'U')

-- queue of version 1 create
IF object_id(N'[dbo].[q]', N'U') IS NULL
BEGIN
	CREATE TABLE [dbo].[q] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL);
	ALTER TABLE [dbo].[q] SET (LOCK_ESCALATION = DISABLE);
END

-- queue of version 1 createShared
IF object_id(N'[dbo].[q]', N'U') IS NULL
BEGIN
	CREATE TABLE [dbo].[q] (
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
		INDEX holdfast_expires NONCLUSTERED (Expires) WHERE Expires IS NOT NULL,
		INDEX holdfast_id UNIQUE NONCLUSTERED (Id));
	ALTER TABLE [dbo].[q] SET (LOCK_ESCALATION = DISABLE);
END

-- queue of version 1 note
IF EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q' AND version > 2)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(N'[dbo].[q]', N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q')
	INSERT INTO [dbo].[holdfast_tables] (name, version) VALUES (N'q', CASE WHEN col_length(N'[dbo].[q]', N'RowVersion') IS NULL THEN 1 ELSE 2 END);

-- queue of version 1 drop
IF object_id(N'[dbo].[q]', N'U') IS NOT NULL AND col_length(N'[dbo].[q]', N'lease_id') IS NULL
	THROW 50000, N'its table is not one of this transport: it is not removed', 1;
DROP TABLE IF EXISTS [dbo].[q];

-- queue of version 1 forget
IF object_id(N'[dbo].[holdfast_tables]', N'U') IS NOT NULL DELETE FROM [dbo].[holdfast_tables] WHERE name = N'q';

-- queue of version 1 try
SET LOCK_TIMEOUT 0;
SELECT TOP (1) 1 FROM [dbo].[q] WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK);

-- queue of version 1 hasten
DECLARE @now datetime2(7) = sysutcdatetime();
DECLARE @first datetime2(7) = (SELECT min(visible_at) FROM [dbo].[q] WITH (READPAST, READCOMMITTEDLOCK));
UPDATE q SET visible_at = CASE WHEN @first < @now THEN @first ELSE @now END
FROM OPENJSON(@seqs) WITH (seq bigint '$') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.seq = r.seq
WHERE q.lease_id IS NULL AND q.visible_at > @now;

-- queue of version 1 vacate
DELETE q FROM OPENJSON(@names) WITH ([name] uniqueidentifier '$') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (INDEX (holdfast_timer), UPDLOCK, HOLDLOCK, ROWLOCK) ON q.timer = r.[name] AND q.timer IS NOT NULL;

-- queue of version 1 insertNamed
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [dbo].[q] (Headers, Body, visible_at, Expires, timer)
OUTPUT inserted.seq
SELECT r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END, r.[name]
FROM OPENJSON(@rows) WITH (n int, headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint, [name] uniqueidentifier) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;

-- queue of version 1 addNames
IF col_length(N'[dbo].[q]', N'lease_id') IS NOT NULL AND col_length(N'[dbo].[q]', N'timer') IS NULL
	ALTER TABLE [dbo].[q] ADD timer uniqueidentifier;

-- queue of version 1 indexNames
IF col_length(N'[dbo].[q]', N'timer') IS NOT NULL
	AND NOT EXISTS (SELECT 1 FROM sys.indexes WHERE object_id = object_id(N'[dbo].[q]', N'U') AND name = N'holdfast_timer')
	EXEC (N'CREATE UNIQUE NONCLUSTERED INDEX holdfast_timer ON [dbo].[q] (timer) WHERE timer IS NOT NULL');

-- columns in another database
SELECT c.name FROM [other].sys.columns AS c WHERE c.object_id = object_id(N'[other].[nsb].[q]', N'U')

-- version of a queue in another schema
IF EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q@[nsb]' AND version > 2)
	THROW 50000, N'its table is of a version that this program does not know', 1;
IF col_length(N'[nsb].[q]', N'lease_id') IS NOT NULL AND NOT EXISTS (SELECT 1 FROM [dbo].[holdfast_tables] WHERE name = N'q@[nsb]')
	INSERT INTO [dbo].[holdfast_tables] (name, version) VALUES (N'q@[nsb]', CASE WHEN col_length(N'[nsb].[q]', N'RowVersion') IS NULL THEN 1 ELSE 2 END);

-- adopt upgrade
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'seq') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NOT NULL
BEGIN
	BEGIN TRANSACTION;
	EXEC (N'UPDATE [my''s [schema]]].[Sales."Orders"]]''--] WITH (TABLOCKX) SET Id = convert(nvarchar(36), newid()) WHERE len(Id) <> 36 OR try_convert(uniqueidentifier, Id) IS NULL');
	DECLARE @drop nvarchar(max) = (SELECT N'ALTER TABLE [my''s [schema]]].[Sales."Orders"]]''--] DROP CONSTRAINT ' + quotename(d.name) FROM sys.default_constraints AS d
		WHERE d.parent_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND col_name(d.parent_object_id, d.parent_column_id) = N'Id');
	EXEC (@drop);
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ALTER COLUMN Id uniqueidentifier NOT NULL;
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD CONSTRAINT holdfast_Id_d0a1ca5c34e73e56 DEFAULT newid() FOR Id;
	EXEC sp_rename N'[my''s [schema]]].[Sales."Orders"]]''--].[seq]', N'RowVersion', N'COLUMN';
	UPDATE [my's [schema]]].[holdfast_tables] SET version = 2 WHERE name = N'Sales."Orders"]''--';
	COMMIT TRANSACTION;
END

-- adopt adopted
SELECT coalesce(columnproperty(object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U'), N'visible_at', 'AllowsNull'), 0)

-- adopt unfit
SELECT N'column' AS kind, d.name, d.detail FROM (
	SELECT c.name, concat(type_name(c.user_type_id),
		CASE c.max_length WHEN -1 THEN N'(max)' ELSE concat(N'(', c.max_length, N')') END,
		CASE c.is_nullable WHEN 0 THEN N' NOT NULL' ELSE N'' END,
		CASE c.is_identity WHEN 1 THEN N' IDENTITY' ELSE N'' END,
		CASE c.is_computed WHEN 1 THEN N' computed' ELSE N'' END) AS detail, c.is_computed
	FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')) AS d
WHERE NOT (d.name = N'BodyString' AND d.is_computed = 1)
	AND concat(d.name, N' ', d.detail) NOT IN (N'Id uniqueidentifier(16) NOT NULL', N'CorrelationId varchar(255)', N'ReplyToAddress varchar(255)', N'Recoverable bit(1) NOT NULL', N'Recoverable bit(1)', N'Expires datetime(8)', N'Headers nvarchar(max) NOT NULL', N'Body varbinary(max)', N'RowVersion bigint(8) NOT NULL IDENTITY', N'Expires datetime2(8)', N'visible_at datetime2(8)', N'delivery_count int(4)', N'lease_owner nvarchar(max)', N'last_error nvarchar(max)')
UNION ALL SELECT N'missing column', k.name, N''
FROM (SELECT N'Id' AS name UNION ALL SELECT N'Expires' UNION ALL SELECT N'Headers' UNION ALL SELECT N'Body' UNION ALL SELECT N'RowVersion') AS k
WHERE NOT EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND c.name = k.name)
UNION ALL SELECT N'identity', x.name, N'does not grow'
FROM sys.identity_columns AS x WHERE x.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND cast(x.increment_value AS bigint) < 1
UNION ALL SELECT N'trigger', x.name, N'' FROM sys.triggers AS x WHERE x.parent_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')
UNION ALL SELECT N'check constraint', x.name, N'' FROM sys.check_constraints AS x WHERE x.parent_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')
UNION ALL SELECT N'foreign key', x.name, N''
FROM sys.foreign_keys AS x WHERE x.parent_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') OR x.referenced_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')
UNION ALL SELECT N'row-level security', object_name(x.object_id), N''
FROM sys.security_predicates AS x WHERE x.target_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')
UNION ALL SELECT N'partition scheme', x.name, N''
FROM sys.indexes AS i INNER JOIN sys.partition_schemes AS x ON x.data_space_id = i.data_space_id WHERE i.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')
UNION ALL SELECT N'temporal table', x.name, N'' FROM sys.tables AS x WHERE x.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND x.temporal_type <> 0
UNION ALL SELECT N'memory-optimized table', x.name, N''
FROM sys.tables AS x WHERE x.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND x.is_memory_optimized = 1;

-- adopt columns
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NULL
BEGIN
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] SET (LOCK_ESCALATION = DISABLE);
	IF NOT EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND c.name = N'Id' AND c.default_object_id <> 0)
		ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD CONSTRAINT holdfast_Id_d0a1ca5c34e73e56 DEFAULT newid() FOR Id;
	IF EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND c.name = N'Recoverable' AND c.default_object_id = 0)
		ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD CONSTRAINT holdfast_Recoverable_d0a1ca5c34e73e56 DEFAULT 1 FOR Recoverable;
	IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'visible_at') IS NULL
		ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD visible_at datetime2(7) DEFAULT sysutcdatetime(), delivery_count int DEFAULT 0,
			lease_owner nvarchar(max), last_error nvarchar(max);
END

-- adopt fill
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NULL
BEGIN
	DECLARE @at datetime2(7) = coalesce((SELECT min(visible_at) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)), sysutcdatetime());
	DECLARE @from bigint = (SELECT min(RowVersion) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK));
	WHILE @from IS NOT NULL
	BEGIN
		UPDATE q SET visible_at = @at, delivery_count = 0
		FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
		WHERE q.RowVersion >= @from AND q.RowVersion < @from + 1000 AND q.visible_at IS NULL;
		SET @from = (SELECT min(RowVersion) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK) WHERE RowVersion >= @from + 1000);
	END
END

-- adopt indexes
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NULL
BEGIN
	DECLARE @online nvarchar(30) = CASE WHEN convert(int, serverproperty(N'EngineEdition')) IN (3, 5, 8) THEN N' WITH (ONLINE = ON)' ELSE N'' END;
	IF NOT EXISTS (SELECT 1 FROM sys.indexes AS i INNER JOIN sys.index_columns AS c ON c.object_id = i.object_id AND c.index_id = i.index_id AND c.key_ordinal > 0
		WHERE i.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND i.is_unique = 1 AND i.has_filter = 0 AND i.is_disabled = 0
		GROUP BY i.index_id HAVING count(*) = 1 AND min(col_name(c.object_id, c.column_id)) = N'RowVersion')
		EXEC (N'CREATE UNIQUE INDEX holdfast_key ON [my''s [schema]]].[Sales."Orders"]]''--] (RowVersion)' + @online);
	IF indexproperty(object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U'), N'holdfast_due', 'IndexID') IS NULL
		EXEC (N'CREATE INDEX holdfast_due ON [my''s [schema]]].[Sales."Orders"]]''--] (visible_at, RowVersion)' + @online);
	IF NOT EXISTS (SELECT 1 FROM sys.index_columns AS c
		WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND c.key_ordinal = 1 AND col_name(c.object_id, c.column_id) = N'Expires')
		EXEC (N'CREATE INDEX holdfast_expires ON [my''s [schema]]].[Sales."Orders"]]''--] (Expires) WHERE Expires IS NOT NULL' + @online);
END

-- adopt lease
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NOT NULL AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'lease_id') IS NULL
BEGIN
	DECLARE @at datetime2(7) = coalesce((SELECT min(visible_at) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
		WHERE visible_at IS NOT NULL), sysutcdatetime());
	UPDATE q SET visible_at = @at, delivery_count = 0 FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_due), ROWLOCK) WHERE visible_at IS NULL;
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] ADD lease_id bigint;
END

-- repeat in a script
DECLARE @again bit = 1;
WHILE @again = 1
BEGIN
	BEGIN TRY
		SET XACT_ABORT ON; SET LOCK_TIMEOUT 50;
		IF object_id(N'[dbo].[q]', N'U') IS NOT NULL AND col_length(N'[dbo].[q]', N'lease_id') IS NULL
		BEGIN
			DECLARE @at datetime2(7) = coalesce((SELECT min(visible_at) FROM [dbo].[q] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
				WHERE visible_at IS NOT NULL), sysutcdatetime());
			UPDATE q SET visible_at = @at, delivery_count = 0 FROM [dbo].[q] AS q WITH (INDEX (holdfast_due), ROWLOCK) WHERE visible_at IS NULL;
			ALTER TABLE [dbo].[q] ADD lease_id bigint;
		END
		SET @again = 0;
	END TRY
	BEGIN CATCH
		IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
		IF error_number() <> 1222 THROW;
		RAISERROR (N'%s', 0, 1, N'queue "q": its table is locked by another transaction: trying again') WITH NOWAIT;
		WAITFOR DELAY '00:00:01';
	END CATCH
END

-- refuse in a script
IF object_id(N'[dbo].[q]', N'U') IS NOT NULL AND col_length(N'[dbo].[q]', N'lease_id') IS NULL
BEGIN
	DECLARE @found TABLE (kind nvarchar(60), name nvarchar(300), detail nvarchar(600));
	INSERT INTO @found
SELECT N'column' AS kind, d.name, d.detail FROM (
	SELECT c.name, concat(type_name(c.user_type_id),
		CASE c.max_length WHEN -1 THEN N'(max)' ELSE concat(N'(', c.max_length, N')') END,
		CASE c.is_nullable WHEN 0 THEN N' NOT NULL' ELSE N'' END,
		CASE c.is_identity WHEN 1 THEN N' IDENTITY' ELSE N'' END,
		CASE c.is_computed WHEN 1 THEN N' computed' ELSE N'' END) AS detail, c.is_computed
	FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[q]', N'U')) AS d
WHERE NOT (d.name = N'BodyString' AND d.is_computed = 1)
	AND concat(d.name, N' ', d.detail) NOT IN (N'Id uniqueidentifier(16) NOT NULL', N'CorrelationId varchar(255)', N'ReplyToAddress varchar(255)', N'Recoverable bit(1) NOT NULL', N'Recoverable bit(1)', N'Expires datetime(8)', N'Headers nvarchar(max) NOT NULL', N'Body varbinary(max)', N'RowVersion bigint(8) NOT NULL IDENTITY', N'Expires datetime2(8)', N'visible_at datetime2(8)', N'delivery_count int(4)', N'lease_owner nvarchar(max)', N'last_error nvarchar(max)')
UNION ALL SELECT N'missing column', k.name, N''
FROM (SELECT N'Id' AS name UNION ALL SELECT N'Expires' UNION ALL SELECT N'Headers' UNION ALL SELECT N'Body' UNION ALL SELECT N'RowVersion') AS k
WHERE NOT EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = object_id(N'[dbo].[q]', N'U') AND c.name = k.name)
UNION ALL SELECT N'identity', x.name, N'does not grow'
FROM sys.identity_columns AS x WHERE x.object_id = object_id(N'[dbo].[q]', N'U') AND cast(x.increment_value AS bigint) < 1
UNION ALL SELECT N'trigger', x.name, N'' FROM sys.triggers AS x WHERE x.parent_id = object_id(N'[dbo].[q]', N'U')
UNION ALL SELECT N'check constraint', x.name, N'' FROM sys.check_constraints AS x WHERE x.parent_object_id = object_id(N'[dbo].[q]', N'U')
UNION ALL SELECT N'foreign key', x.name, N''
FROM sys.foreign_keys AS x WHERE x.parent_object_id = object_id(N'[dbo].[q]', N'U') OR x.referenced_object_id = object_id(N'[dbo].[q]', N'U')
UNION ALL SELECT N'row-level security', object_name(x.object_id), N''
FROM sys.security_predicates AS x WHERE x.target_object_id = object_id(N'[dbo].[q]', N'U')
UNION ALL SELECT N'partition scheme', x.name, N''
FROM sys.indexes AS i INNER JOIN sys.partition_schemes AS x ON x.data_space_id = i.data_space_id WHERE i.object_id = object_id(N'[dbo].[q]', N'U')
UNION ALL SELECT N'temporal table', x.name, N'' FROM sys.tables AS x WHERE x.object_id = object_id(N'[dbo].[q]', N'U') AND x.temporal_type <> 0
UNION ALL SELECT N'memory-optimized table', x.name, N''
FROM sys.tables AS x WHERE x.object_id = object_id(N'[dbo].[q]', N'U') AND x.is_memory_optimized = 1;
	IF EXISTS (SELECT 1 FROM @found)
	BEGIN
		SELECT kind, name, detail FROM @found;
		RAISERROR (N'%s', 16, 1, N'queue "q": its table is not as NServiceBus creates it, and is not adopted');
		SET NOEXEC ON;
	END
END

-- lock of an adoption
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0;
SELECT @got;

-- end of an adoption
EXEC sp_releaseapplock @Resource = @name, @LockOwner = 'Session';

-- edition
SELECT CASE WHEN convert(int, serverproperty(N'EngineEdition')) IN (3, 5, 8) THEN 1 ELSE 0 END

-- delayed messages of NServiceBus columns
SELECT CASE WHEN object_id(N'[my''s [schema]]].[Sales."Orders"]]''--.Delayed]', N'U') IS NULL THEN -1 ELSE (
	SELECT count(*) FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--.Delayed]', N'U')
	AND concat(c.name, N' ', type_name(c.system_type_id)) IN (N'Headers nvarchar', N'Body varbinary', N'Due datetime')) END

-- delayed messages of NServiceBus move
DECLARE @now datetime = getutcdate();
DECLARE @moved TABLE (Headers nvarchar(max), Body varbinary(max), Due datetime);
WITH due AS (
	SELECT TOP (@limit) Headers, Body, Due FROM [my's [schema]]].[Sales."Orders"]]'--.Delayed] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
	WHERE Due < @now ORDER BY Due)
DELETE FROM due OUTPUT deleted.Headers, deleted.Body, deleted.Due INTO @moved;
INSERT INTO [my's [schema]]].[Sales."Orders"]]'--] (Headers, Body) SELECT m.Headers, coalesce(m.Body, 0x) FROM @moved AS m ORDER BY m.Due;
SELECT (SELECT count(*) FROM @moved), coalesce((SELECT TOP (1) datediff_big(microsecond, @now, Due)
	FROM [my's [schema]]].[Sales."Orders"]]'--.Delayed] WITH (READPAST, READCOMMITTEDLOCK) WHERE Due > @now ORDER BY Due), 0);

-- hand over holders
SELECT coalesce(lease_owner, N''), count_big(*) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READUNCOMMITTED)
WHERE lease_id IS NOT NULL AND visible_at > sysutcdatetime() GROUP BY lease_owner ORDER BY lease_owner

-- hand over fill
UPDATE q SET Body = 0x FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE q.Body IS NULL;

-- hand over create
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--.Delayed]', N'U') IS NULL
	CREATE TABLE [my's [schema]]].[Sales."Orders"]]'--.Delayed] (
		Headers nvarchar(max) NOT NULL,
		Body varbinary(max),
		Due datetime NOT NULL,
		RowVersion bigint IDENTITY NOT NULL,
		INDEX Index_Due NONCLUSTERED (Due));

-- hand over lock
SELECT TOP (1) 1 FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (TABLOCKX, HOLDLOCK)

-- hand over leased
SELECT count_big(*) FROM [my's [schema]]].[Sales."Orders"]]'--] WHERE lease_id IS NOT NULL AND visible_at > sysutcdatetime()

-- hand over end
DECLARE @drop nvarchar(max) = N'';
SELECT @drop += N'ALTER TABLE [my''s [schema]]].[Sales."Orders"]]''--] DROP CONSTRAINT ' + quotename(d.name) + N';' FROM sys.default_constraints AS d
WHERE d.parent_object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') AND col_name(d.parent_object_id, d.parent_column_id) IN (N'visible_at', N'delivery_count');
EXEC (@drop);
DROP INDEX holdfast_due ON [my's [schema]]].[Sales."Orders"]]'--];
ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] DROP COLUMN visible_at, delivery_count, lease_id, lease_owner, last_error;

-- delay in a table of NServiceBus find
SELECT TOP (@limit) RowVersion, Headers FROM [dbo].[q] WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE visible_at > sysutcdatetime() AND lease_id IS NULL ORDER BY visible_at, RowVersion

-- delay in a table of NServiceBus move
DECLARE @gone TABLE (Headers nvarchar(max), Body varbinary(max), visible_at datetime2(7));
DELETE q OUTPUT r.headers, deleted.Body, deleted.visible_at INTO @gone
FROM OPENJSON(@rows) WITH (seq bigint '$[0]', headers nvarchar(max) '$[1]') AS r
INNER LOOP JOIN [dbo].[q] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq;
INSERT INTO [dbo].[q.Delayed] (Headers, Body, Due)
SELECT g.Headers, coalesce(g.Body, 0x), convert(datetime, dateadd(millisecond, 2, g.visible_at)) FROM @gone AS g ORDER BY g.visible_at;
SELECT @@ROWCOUNT;

-- delay all in a table of NServiceBus find
SELECT TOP (@limit) RowVersion, Headers FROM [dbo].[q.forwards] WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE NOT (lease_id IS NOT NULL AND visible_at > sysutcdatetime()) ORDER BY visible_at, RowVersion

-- delay all in a table of NServiceBus move
DECLARE @gone TABLE (Headers nvarchar(max), Body varbinary(max), visible_at datetime2(7));
DELETE q OUTPUT r.headers, deleted.Body, deleted.visible_at INTO @gone
FROM OPENJSON(@rows) WITH (seq bigint '$[0]', headers nvarchar(max) '$[1]') AS r
INNER LOOP JOIN [dbo].[q.forwards] AS q WITH (ROWLOCK) ON q.RowVersion = r.seq;
INSERT INTO [dbo].[q.Delayed] (Headers, Body, Due)
SELECT g.Headers, coalesce(g.Body, 0x), convert(datetime, dateadd(millisecond, 2, g.visible_at)) FROM @gone AS g ORDER BY g.visible_at;
SELECT @@ROWCOUNT;

-- versions create
IF object_id(N'[my''s [schema]]].[holdfast_tables]', N'U') IS NULL
	CREATE TABLE [my's [schema]]].[holdfast_tables] (
		name nvarchar(450) COLLATE Latin1_General_BIN2 PRIMARY KEY,
		version int NOT NULL,
		swept_at datetime2(7) NOT NULL DEFAULT sysutcdatetime());

-- versions due
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET swept_at = @now
OUTPUT inserted.name FROM [my's [schema]]].[holdfast_tables] AS q WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.swept_at <= dateadd(second, -45, @now);

-- versions of inboxes
IF object_id(N'[my''s [schema]]].[holdfast_handled]', N'U') IS NULL
	CREATE TABLE [my's [schema]]].[holdfast_handled] (
		name nvarchar(450) COLLATE Latin1_General_BIN2 PRIMARY KEY,
		version int NOT NULL,
		forgotten_at datetime2(7) NOT NULL DEFAULT sysutcdatetime());

-- inbox create
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NULL
BEGIN
	CREATE TABLE [my's [schema]]].[Sales."Orders"]]'--] (
		[key] binary(16) PRIMARY KEY CLUSTERED,
		[at] datetime2(7) NOT NULL DEFAULT sysutcdatetime(),
		[sum] int NOT NULL,
		INDEX holdfast_at NONCLUSTERED ([at]));
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] SET (LOCK_ESCALATION = DISABLE);
END

-- inbox note
IF EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_handled] WHERE name = N'Sales."Orders"]''--' AND version > 1)
	THROW 50000, N'the inbox is of a version that this program does not know: update this program', 1;
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'key') = 16 AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'sum') = 4 AND NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_handled] WHERE name = N'Sales."Orders"]''--')
	INSERT INTO [my's [schema]]].[holdfast_handled] (name, version) VALUES (N'Sales."Orders"]''--', 1);

-- inbox drop
IF col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'key') = 16 AND col_length(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'sum') = 4 DROP TABLE [my's [schema]]].[Sales."Orders"]]'--];

-- inbox unnote
IF object_id(N'[my''s [schema]]].[holdfast_handled]', N'U') IS NOT NULL DELETE FROM [my's [schema]]].[holdfast_handled] WHERE name = N'Sales."Orders"]''--';

-- inbox columns
SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')

-- inbox version
SELECT version FROM [my's [schema]]].[holdfast_handled] WHERE name = N'Sales."Orders"]''--'

-- inbox record
INSERT INTO [my's [schema]]].[Sales."Orders"]]'--] ([key], [sum]) OUTPUT inserted.[key]
SELECT convert(binary(16), r.[key], 2), r.[sum] FROM OPENJSON(@keys) WITH (n int '$[0]', [key] char(32) '$[1]', [sum] int '$[2]') AS r
LEFT LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS h WITH (ROWLOCK, READCOMMITTEDLOCK) ON h.[key] = convert(binary(16), r.[key], 2)
WHERE h.[key] IS NULL ORDER BY r.[key];

-- inbox find
SELECT r.n, h.[sum] FROM OPENJSON(@keys) WITH (n int '$[0]', [key] char(32) '$[1]', [sum] int '$[2]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS h WITH (READPAST, READCOMMITTEDLOCK) ON h.[key] = convert(binary(16), r.[key], 2);

-- inbox due
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE [my's [schema]]].[holdfast_handled] WITH (ROWLOCK) SET forgotten_at = @now
WHERE name = N'Sales."Orders"]''--' AND forgotten_at <= dateadd(microsecond, @ago % 1000000, dateadd(second, @ago / 1000000 % 86400, dateadd(day, @ago / 1000000 / 86400, @now)));
SELECT @@ROWCOUNT;

-- inbox forget
DECLARE @before datetime2(7) = dateadd(microsecond, @ago % 1000000, dateadd(second, @ago / 1000000 % 86400, dateadd(day, @ago / 1000000 / 86400, sysutcdatetime())));
WITH old AS (
	SELECT TOP (@limit) [at] FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_at), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE [at] <= @before ORDER BY [at])
DELETE FROM old;
SELECT @@ROWCOUNT;

-- inbox forgetKeys
DELETE h FROM OPENJSON(@keys) WITH (n int '$[0]', [key] char(32) '$[1]', [sum] int '$[2]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS h WITH (ROWLOCK) ON h.[key] = convert(binary(16), r.[key], 2);
SELECT @@ROWCOUNT;

-- inbox inspect
DECLARE @now datetime2(7) = sysutcdatetime();
SELECT CASE WHEN s.[rows] < 100000 THEN (SELECT count_big(*) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)) ELSE s.[rows] END, s.bytes,
	(SELECT count_big(*) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK) WHERE [at] > dateadd(hour, -1, @now)),
	coalesce(datediff_big(microsecond, (SELECT min([at]) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)), @now), 0)
FROM (
	SELECT coalesce(sum(CASE WHEN p.index_id = 1 THEN p.[rows] END), 0) AS [rows], coalesce(sum(a.pages), 0) * 8192 AS bytes
	FROM sys.partitions AS p CROSS APPLY (
		SELECT sum(u.total_pages) AS pages FROM sys.allocation_units AS u WHERE u.container_id = p.hobt_id) AS a
	WHERE p.object_id = object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U')) AS s;

-- before a statement about records
SET LOCK_TIMEOUT 5000;

-- records create
IF object_id(N'[my''s [schema]]].[holdfast_state]', N'U') IS NULL
BEGIN
	CREATE TABLE [my's [schema]]].[holdfast_state] (
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
	ALTER TABLE [my's [schema]]].[holdfast_state] SET (LOCK_ESCALATION = DISABLE);
END

-- records note
IF EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_handled] WHERE name = N'holdfast_state' AND version > 1)
	THROW 50000, N'the table of records is of a version that this program does not know: update this program', 1;
IF NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_handled] WHERE name = N'holdfast_state')
	INSERT INTO [my's [schema]]].[holdfast_handled] (name, version) VALUES (N'holdfast_state', 1);

-- records columns
SELECT c.name FROM sys.columns AS c WHERE c.object_id = object_id(N'[my''s [schema]]].[holdfast_state]', N'U')

-- records version
SELECT version FROM [my's [schema]]].[holdfast_handled] WHERE name = N'holdfast_state'

-- records insert
IF NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_state] WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id)
BEGIN
	BEGIN TRY
		INSERT INTO [my's [schema]]].[holdfast_state] (id, kind, [key], version, status) VALUES (@id, @kind, @key, 0, 0);
	END TRY
	BEGIN CATCH
		IF error_number() NOT IN (2601, 2627) THROW;
	END CATCH
END

-- records lock
SELECT id, kind, [key], version, status, state, meta, started, changed FROM [my's [schema]]].[holdfast_state] WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK) WHERE id = @id

-- records save
UPDATE [my's [schema]]].[holdfast_state] WITH (ROWLOCK) SET version = @version, status = @status, state = @state, meta = @meta,
	started = CASE WHEN @version = 1 THEN sysutcdatetime() ELSE started END, changed = sysutcdatetime(),
	forget_at = CASE WHEN @status = 2 THEN dateadd(microsecond, @keep % 1000000, dateadd(second, @keep / 1000000 % 86400, dateadd(day, @keep / 1000000 / 86400, sysutcdatetime()))) END
WHERE id = @id AND version = @loaded;
SELECT @@ROWCOUNT;

-- records remove
DELETE FROM [my's [schema]]].[holdfast_state] WITH (ROWLOCK) WHERE id = @id AND version = @loaded;
SELECT @@ROWCOUNT;

-- records forget
WITH old AS (
	SELECT TOP (@limit) forget_at FROM [my's [schema]]].[holdfast_state] WITH (INDEX (holdfast_forget_at), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE forget_at <= sysutcdatetime() ORDER BY forget_at)
DELETE FROM old;
SELECT @@ROWCOUNT;

-- records page
SELECT TOP (@limit) id, kind, [key], version, status, state, meta, started, changed FROM [my's [schema]]].[holdfast_state] WITH (READCOMMITTEDLOCK)
WHERE kind = @kind AND [key] > @after AND version > 0 ORDER BY [key]

-- records one
SELECT id, kind, [key], version, status, state, meta, started, changed FROM [my's [schema]]].[holdfast_state] WITH (READCOMMITTEDLOCK) WHERE id = @id AND version > 0

-- records count
SELECT coalesce(sum(CASE WHEN status = 1 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN status = 2 THEN 1 ELSE 0 END), 0),
	coalesce(datediff_big(microsecond, min(CASE WHEN status = 1 THEN changed END), sysutcdatetime()), 0)
FROM [my's [schema]]].[holdfast_state] WITH (READPAST, READCOMMITTEDLOCK) WHERE kind = @kind

-- subscriptions create
IF object_id(N'[my''s [schema]]].[holdfast_subscriptions]', N'U') IS NULL
	CREATE TABLE [my's [schema]]].[holdfast_subscriptions] (
		[type] nvarchar(300) COLLATE Latin1_General_BIN2 NOT NULL,
		queue nvarchar(128) COLLATE Latin1_General_BIN2 NOT NULL,
		PRIMARY KEY ([type], queue));

-- subscriptions add
INSERT INTO [my's [schema]]].[holdfast_subscriptions] ([type], queue)
SELECT wanted.[type], @queue FROM (SELECT DISTINCT r.[type] COLLATE Latin1_General_BIN2 AS [type]
	FROM OPENJSON(@types) WITH ([type] nvarchar(300) '$') AS r) AS wanted
WHERE NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_subscriptions] AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.[type] = wanted.[type] AND s.queue = @queue);

-- subscriptions remove
DELETE FROM [my's [schema]]].[holdfast_subscriptions] WHERE queue = @queue AND [type] IN (SELECT DISTINCT r.[type] COLLATE Latin1_General_BIN2 AS [type]
	FROM OPENJSON(@types) WITH ([type] nvarchar(300) '$') AS r);

-- subscriptions all
SELECT [type], queue FROM [my's [schema]]].[holdfast_subscriptions] ORDER BY [type], queue

-- subscriptions forget
IF object_id(N'[my''s [schema]]].[holdfast_subscriptions]', N'U') IS NOT NULL DELETE FROM [my's [schema]]].[holdfast_subscriptions] WHERE queue = @queue;

-- shared subscriptions create
IF object_id(N'[dbo].[SubscriptionRouting]', N'U') IS NULL
	CREATE TABLE [dbo].[SubscriptionRouting] (
		QueueAddress nvarchar(200) NOT NULL,
		Endpoint nvarchar(200) NOT NULL,
		Topic nvarchar(200) NOT NULL,
		PRIMARY KEY CLUSTERED (Endpoint, Topic));

-- shared subscriptions add
UPDATE [dbo].[SubscriptionRouting] SET QueueAddress = @queue WHERE Endpoint = @endpoint AND Topic IN (SELECT DISTINCT r.[type] FROM OPENJSON(@types) WITH ([type] nvarchar(200) '$') AS r);
INSERT INTO [dbo].[SubscriptionRouting] (QueueAddress, Endpoint, Topic)
SELECT @queue, @endpoint, wanted.[type] FROM (SELECT DISTINCT r.[type] FROM OPENJSON(@types) WITH ([type] nvarchar(200) '$') AS r) AS wanted
WHERE NOT EXISTS (SELECT 1 FROM [dbo].[SubscriptionRouting] AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.Endpoint = @endpoint AND s.Topic = wanted.[type]);

-- shared subscriptions remove
DELETE FROM [dbo].[SubscriptionRouting] WHERE Endpoint = @endpoint AND Topic IN (SELECT DISTINCT r.[type] FROM OPENJSON(@types) WITH ([type] nvarchar(200) '$') AS r);

-- shared subscriptions all
SELECT Topic, QueueAddress FROM [dbo].[SubscriptionRouting] ORDER BY Topic, QueueAddress

-- shared subscriptions forget
IF object_id(N'[dbo].[SubscriptionRouting]', N'U') IS NOT NULL DELETE FROM [dbo].[SubscriptionRouting] WHERE QueueAddress = @queue;

