-- database
SELECT db_name()

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

-- exists
SELECT count(*) WHERE object_id(@name, N'U') IS NOT NULL

-- queues
SELECT t.name FROM sys.tables AS t WHERE t.schema_id = schema_id(@schema) AND 3 = (
	SELECT count(*) FROM sys.columns AS c
	WHERE c.object_id = t.object_id AND c.name IN (N'visible_at', N'delivery_count', N'lease_id'))
ORDER BY t.name

-- queue quoted
[my's [schema]]].[Sales."Orders"]]'--]

-- queue claim
DECLARE @now datetime2(7) = sysutcdatetime();
WITH due AS (
	SELECT TOP (@limit) seq, id, headers, body, visible_at, expires_at, delivery_count, lease_id, lease_owner
	FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
	WHERE visible_at <= @now ORDER BY visible_at, seq)
UPDATE due SET delivery_count = delivery_count + 1, visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))),
	lease_id = @lease, lease_owner = @owner
OUTPUT inserted.seq, inserted.id, inserted.headers, inserted.body, inserted.delivery_count,
	CASE WHEN inserted.expires_at <= @now THEN 1 ELSE 0 END;
IF @@ROWCOUNT = 0
	SELECT TOP (1) datediff_big(microsecond, @now, visible_at)
	FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
	WHERE visible_at > @now ORDER BY visible_at, seq;

-- queue renew
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue update
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now))),
	delivery_count = CASE WHEN q.delivery_count > r.undo THEN q.delivery_count - r.undo ELSE 0 END,
	lease_id = NULL, lease_owner = NULL
OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue remove
DELETE q OUTPUT r.n FROM OPENJSON(@rows) WITH (n int '$[0]', seq bigint '$[1]', lease bigint '$[2]', after_us bigint '$[3]', undo int '$[4]') AS r
INNER LOOP JOIN [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (ROWLOCK) ON q.seq = r.seq AND q.lease_id = r.lease;

-- queue insert
DECLARE @now datetime2(7) = sysutcdatetime();
INSERT INTO [my's [schema]]].[Sales."Orders"]]'--] (id, headers, body, visible_at, expires_at)
OUTPUT inserted.seq
SELECT r.id, r.headers, substring(@bodies, r.body_from, r.body_size), due.moment,
	CASE WHEN r.ttl_us > 0 THEN dateadd(microsecond, r.ttl_us % 1000000, dateadd(second, r.ttl_us / 1000000 % 86400, dateadd(day, r.ttl_us / 1000000 / 86400, due.moment))) END
FROM OPENJSON(@rows) WITH (n int, id nvarchar(max), headers nvarchar(max) AS JSON,
	body_from bigint, body_size bigint, at_us bigint, after_us bigint, ttl_us bigint) AS r
CROSS APPLY (SELECT CASE WHEN r.at_us = 0 THEN dateadd(microsecond, r.after_us % 1000000, dateadd(second, r.after_us / 1000000 % 86400, dateadd(day, r.after_us / 1000000 / 86400, @now)))
	ELSE dateadd(microsecond, r.at_us % 1000000, dateadd(second, r.at_us / 1000000 % 86400, dateadd(day, r.at_us / 1000000 / 86400, convert(datetime2(7), '19700101')))) END AS moment) AS wanted
CROSS APPLY (SELECT CASE WHEN wanted.moment > @now THEN wanted.moment ELSE @now END AS moment) AS due
ORDER BY r.n;

-- queue abandon
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_due), ROWLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now))) AND q.lease_owner = @owner;

-- queue orphans
DECLARE @now datetime2(7) = sysutcdatetime();
UPDATE q SET visible_at = @now, lease_id = NULL, lease_owner = NULL
FROM [my's [schema]]].[Sales."Orders"]]'--] AS q WITH (INDEX (holdfast_due), ROWLOCK)
WHERE q.visible_at > @now AND q.visible_at <= dateadd(microsecond, @for % 1000000, dateadd(second, @for / 1000000 % 86400, dateadd(day, @for / 1000000 / 86400, @now)))
	AND q.lease_id IN (SELECT lease FROM OPENJSON(@leases) WITH (lease bigint '$'));

-- queue cancel
DELETE FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (ROWLOCK) WHERE seq = @seq AND delivery_count = 0;

-- queue take
UPDATE [my's [schema]]].[Sales."Orders"]]'--] WITH (ROWLOCK) SET lease_id = @lease
WHERE seq = @seq AND visible_at <= sysutcdatetime();

-- queue last
SELECT coalesce(max(seq), 0) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)

-- queue browse
SELECT TOP (@limit) seq, id, headers, body, delivery_count FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK)
WHERE seq > @after AND seq <= @last AND (expires_at IS NULL OR expires_at > sysutcdatetime()) ORDER BY seq

-- queue inspect
DECLARE @now datetime2(7) = sysutcdatetime();
SELECT count_big(CASE WHEN visible_at <= @now THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NOT NULL THEN 1 END),
	count_big(CASE WHEN visible_at > @now AND lease_id IS NULL THEN 1 END),
	coalesce(datediff_big(microsecond, min(CASE WHEN visible_at <= @now THEN visible_at END), @now), 0)
FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (READPAST, READCOMMITTEDLOCK) WHERE expires_at IS NULL OR expires_at > @now;

-- queue purge
DELETE TOP (5000) FROM [my's [schema]]].[Sales."Orders"]]'--] WITH (INDEX (holdfast_due), READPAST, ROWLOCK, READCOMMITTEDLOCK)
WHERE visible_at <= sysutcdatetime();

-- queue create
IF object_id(N'[my''s [schema]]].[Sales."Orders"]]''--]', N'U') IS NULL
BEGIN
	CREATE TABLE [my's [schema]]].[Sales."Orders"]]'--] (
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
	ALTER TABLE [my's [schema]]].[Sales."Orders"]]'--] SET (LOCK_ESCALATION = DISABLE);
END

-- subscriptions create
IF object_id(N'[my''s [schema]]].[holdfast_subscriptions]', N'U') IS NULL
	CREATE TABLE [my's [schema]]].[holdfast_subscriptions] (
		type nvarchar(300) COLLATE Latin1_General_BIN2 NOT NULL,
		queue nvarchar(128) COLLATE Latin1_General_BIN2 NOT NULL,
		PRIMARY KEY (type, queue));

-- subscriptions add
INSERT INTO [my's [schema]]].[holdfast_subscriptions] (type, queue)
SELECT DISTINCT r.type COLLATE Latin1_General_BIN2, @queue FROM OPENJSON(@types) WITH (type nvarchar(300) '$') AS r
WHERE NOT EXISTS (SELECT 1 FROM [my's [schema]]].[holdfast_subscriptions] AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.type = r.type COLLATE Latin1_General_BIN2 AND s.queue = @queue);

-- subscriptions remove
DELETE FROM [my's [schema]]].[holdfast_subscriptions] WHERE queue = @queue AND type IN (SELECT r.type COLLATE Latin1_General_BIN2 FROM OPENJSON(@types) WITH (type nvarchar(300) '$') AS r);

-- subscriptions all
SELECT type, queue FROM [my's [schema]]].[holdfast_subscriptions] ORDER BY type, queue

