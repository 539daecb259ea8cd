package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// The statements on the tables beside the queues. They belong to statements.go.

// createSchema returns the statement that creates a missing schema. CREATE SCHEMA has to be alone
// in its batch.
func createSchema(schema string) string {
	return `IF schema_id(` + literal(schema) + `) IS NULL EXEC (` + literal("CREATE SCHEMA "+bracket(schema)) + `);`
}

// versionStatements are the statements on the table of versions.
type versionStatements struct{ create, due string }

func newVersions(schema string) versionStatements {
	q := quote(schema, dialect.VersionTable)
	return versionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		name nvarchar(450) COLLATE Latin1_General_BIN2 PRIMARY KEY,
		version int NOT NULL,
		swept_at datetime2(7) NOT NULL DEFAULT sysutcdatetime());`,

		// The first process that marks a due queue sweeps it.
		due: declareNow + fmt.Sprintf(`UPDATE q SET swept_at = @now
OUTPUT inserted.name FROM %s AS q WITH (READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE q.swept_at <= dateadd(second, -%d, @now);`, q, int(tablequeue.SweepPause.Seconds())),
	}
}

// subscriptionStatements are the statements on the table of subscriptions. Types differ by case,
// whatever the database's collation.
type subscriptionStatements struct{ create, add, remove, all, forget string }

// The longest names of types. In the driver's own table they are part of a key, which has at most
// 900 bytes.
const (
	maxType  = 300
	maxTopic = 200
)

func newSubscriptions(schema string) subscriptionStatements {
	q := quote(schema, dialect.SubscriptionTable)
	const types = `(SELECT DISTINCT r.[type] COLLATE Latin1_General_BIN2 AS [type]
	FROM OPENJSON(@types) WITH ([type] nvarchar(300) '$') AS r)`
	return subscriptionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		[type] nvarchar(300) COLLATE Latin1_General_BIN2 NOT NULL,
		queue nvarchar(128) COLLATE Latin1_General_BIN2 NOT NULL,
		PRIMARY KEY ([type], queue));`,
		add: `INSERT INTO ` + q + ` ([type], queue)
SELECT wanted.[type], @queue FROM ` + types + ` AS wanted
WHERE NOT EXISTS (SELECT 1 FROM ` + q + ` AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.[type] = wanted.[type] AND s.queue = @queue);`,
		remove: `DELETE FROM ` + q + ` WHERE queue = @queue AND [type] IN ` + types + `;`,
		all:    `SELECT [type], queue FROM ` + q + ` ORDER BY [type], queue`,
		forget: `IF object_id(` + literal(q) + `, N'U') IS NOT NULL DELETE FROM ` + q + ` WHERE queue = @queue;`,
	}
}

// newRouting returns the statements on a table of NServiceBus's shape, which is shared with its
// endpoints and has the endpoint in its key.
func newRouting(schema, table string) subscriptionStatements {
	q := quote(schema, table)
	const types = `(SELECT DISTINCT r.[type] FROM OPENJSON(@types) WITH ([type] nvarchar(200) '$') AS r)`
	return subscriptionStatements{
		create: `IF object_id(` + literal(q) + `, N'U') IS NULL
	CREATE TABLE ` + q + ` (
		QueueAddress nvarchar(200) NOT NULL,
		Endpoint nvarchar(200) NOT NULL,
		Topic nvarchar(200) NOT NULL,
		PRIMARY KEY CLUSTERED (Endpoint, Topic));`,
		add: `UPDATE ` + q + ` SET QueueAddress = @queue WHERE Endpoint = @endpoint AND Topic IN ` + types + `;
INSERT INTO ` + q + ` (QueueAddress, Endpoint, Topic)
SELECT @queue, @endpoint, wanted.[type] FROM ` + types + ` AS wanted
WHERE NOT EXISTS (SELECT 1 FROM ` + q + ` AS s WITH (UPDLOCK, HOLDLOCK) WHERE s.Endpoint = @endpoint AND s.Topic = wanted.[type]);`,
		remove: `DELETE FROM ` + q + ` WHERE Endpoint = @endpoint AND Topic IN ` + types + `;`,
		all:    `SELECT Topic, QueueAddress FROM ` + q + ` ORDER BY Topic, QueueAddress`,
		forget: `IF object_id(` + literal(q) + `, N'U') IS NOT NULL DELETE FROM ` + q + ` WHERE QueueAddress = @queue;`,
	}
}
