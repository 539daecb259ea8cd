package sqlserver

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// adoption has the statements that change a table into one of this version, in the order of their
// use. Each changes nothing where it was executed before, and none changes a table that is of this
// version or does not exist.
//
// A table of NServiceBus gets the column lease_id last: until then it is a foreign one for every
// program, and an adoption that was interrupted can be repeated.
type adoption struct {
	upgrade string // rewrites a table of version 1
	adopted string // returns 1 for a table that was adopted, and 0 for others
	unfit   string // returns the parts that keep a table from being adopted
	columns string // adds columns. Rows that exist keep null in them, which takes no time
	fill    string // sets visible_at and delivery_count of these rows, a thousand at a time
	indexes string
	lease   string // fills the rows that fill has skipped because they were locked, and adds lease_id
}

// adoptionWait is the text before each of these statements, except fill. A statement that waits for
// a lock on a table makes all later ones wait, so it gives up early and is repeated.
const adoptionWait = "SET XACT_ABORT ON; SET LOCK_TIMEOUT 50;\n"

func newAdoption(schema string, at place) adoption {
	q := at.quoted()
	table := `object_id(` + literal(q) + `, N'U')`
	foreign := `IF ` + table + ` IS NOT NULL AND col_length(` + literal(q) + `, N'lease_id') IS NULL
BEGIN
`
	return adoption{
		upgrade: upgrade(quote(schema, dialect.VersionTable), literal(at.queue(schema)), at, table),
		adopted: `SELECT coalesce(columnproperty(` + table + `, N'visible_at', 'AllowsNull'), 0)`,
		unfit:   unfitQuery(table),
		columns: foreign + addedColumns(at, table) + "\nEND",
		fill:    foreign + filled(q) + "\nEND",
		indexes: foreign + addedIndexes(q, table) + "\nEND",
		lease: foreign + `	DECLARE @at datetime2(7) = coalesce((SELECT min(visible_at) FROM ` + q + ` WITH (INDEX (holdfast_due), READPAST, READCOMMITTEDLOCK)
		WHERE visible_at IS NOT NULL), sysutcdatetime());
	UPDATE q SET visible_at = @at, delivery_count = 0 FROM ` + q + ` AS q WITH (INDEX (holdfast_due), ROWLOCK) WHERE visible_at IS NULL;
	ALTER TABLE ` + q + ` ADD lease_id bigint;
END`,
	}
}

// foreignColumns are the columns of NServiceBus's queue tables with their types, as unfitQuery
// writes them, those that an adoption adds, and those with another type in a table of this
// transport, which may have been handed over.
var foreignColumns = []string{
	`Id uniqueidentifier(16) NOT NULL`, `CorrelationId varchar(255)`, `ReplyToAddress varchar(255)`,
	`Recoverable bit(1) NOT NULL`, `Recoverable bit(1)`, `Expires datetime(8)`, `Headers nvarchar(max) NOT NULL`,
	`Body varbinary(max)`, `RowVersion bigint(8) NOT NULL IDENTITY`,
	`Expires datetime2(8)`, `visible_at datetime2(8)`, `delivery_count int(4)`, `lease_owner nvarchar(max)`, `last_error nvarchar(max)`,
}

// unfitQuery returns the query for the parts of a table that NServiceBus does not create, and those
// that it creates and which are missing. A computed column BodyString is one of its options.
func unfitQuery(table string) string {
	return `SELECT N'column' AS kind, d.name, d.detail FROM (
	SELECT c.name, concat(type_name(c.user_type_id),
		CASE c.max_length WHEN -1 THEN N'(max)' ELSE concat(N'(', c.max_length, N')') END,
		CASE c.is_nullable WHEN 0 THEN N' NOT NULL' ELSE N'' END,
		CASE c.is_identity WHEN 1 THEN N' IDENTITY' ELSE N'' END,
		CASE c.is_computed WHEN 1 THEN N' computed' ELSE N'' END) AS detail, c.is_computed
	FROM sys.columns AS c WHERE c.object_id = ` + table + `) AS d
WHERE NOT (d.name = N'BodyString' AND d.is_computed = 1)
	AND concat(d.name, N' ', d.detail) NOT IN (N'` + strings.Join(foreignColumns, `', N'`) + `')
UNION ALL SELECT N'missing column', k.name, N''
FROM (SELECT N'Id' AS name UNION ALL SELECT N'Expires' UNION ALL SELECT N'Headers' UNION ALL SELECT N'Body' UNION ALL SELECT N'RowVersion') AS k
WHERE NOT EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = ` + table + ` AND c.name = k.name)
UNION ALL SELECT N'identity', x.name, N'does not grow'
FROM sys.identity_columns AS x WHERE x.object_id = ` + table + ` AND cast(x.increment_value AS bigint) < 1
UNION ALL SELECT N'trigger', x.name, N'' FROM sys.triggers AS x WHERE x.parent_id = ` + table + `
UNION ALL SELECT N'check constraint', x.name, N'' FROM sys.check_constraints AS x WHERE x.parent_object_id = ` + table + `
UNION ALL SELECT N'foreign key', x.name, N''
FROM sys.foreign_keys AS x WHERE x.parent_object_id = ` + table + ` OR x.referenced_object_id = ` + table + `
UNION ALL SELECT N'row-level security', object_name(x.object_id), N''
FROM sys.security_predicates AS x WHERE x.target_object_id = ` + table + `
UNION ALL SELECT N'partition scheme', x.name, N''
FROM sys.indexes AS i INNER JOIN sys.partition_schemes AS x ON x.data_space_id = i.data_space_id WHERE i.object_id = ` + table + `
UNION ALL SELECT N'temporal table', x.name, N'' FROM sys.tables AS x WHERE x.object_id = ` + table + ` AND x.temporal_type <> 0
UNION ALL SELECT N'memory-optimized table', x.name, N''
FROM sys.tables AS x WHERE x.object_id = ` + table + ` AND x.is_memory_optimized = 1;`
}

// addedColumns returns the statements that add columns to a foreign table, and defaults that an
// insert of this transport relies on.
func addedColumns(at place, table string) string {
	q := at.quoted()
	column := func(name, defaulted string) string {
		return `EXISTS (SELECT 1 FROM sys.columns AS c WHERE c.object_id = ` + table + ` AND c.name = N'` + name +
			`' AND c.default_object_id ` + defaulted + ` 0)`
	}
	return `	ALTER TABLE ` + q + ` SET (LOCK_ESCALATION = DISABLE);
	IF NOT ` + column("Id", "<>") + `
		ALTER TABLE ` + q + ` ADD CONSTRAINT ` + defaultName(at.table, "Id") + ` DEFAULT newid() FOR Id;
	IF ` + column("Recoverable", "=") + `
		ALTER TABLE ` + q + ` ADD CONSTRAINT ` + defaultName(at.table, "Recoverable") + ` DEFAULT 1 FOR Recoverable;
	IF col_length(` + literal(q) + `, N'visible_at') IS NULL
		ALTER TABLE ` + q + ` ADD visible_at datetime2(7) DEFAULT sysutcdatetime(), delivery_count int DEFAULT 0,
			lease_owner nvarchar(max), last_error nvarchar(max);`
}

// defaultName returns the name of the default of a table's column. Names of constraints are unique
// in a schema, and may have no more characters than that of the table.
func defaultName(table, column string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(table))
	return fmt.Sprintf("holdfast_%s_%016x", column, h.Sum64())
}

// filled returns the statements that make the rows visible that were there before the columns: all
// at one time before that of newer rows, so that they keep their order.
func filled(q string) string {
	return `	DECLARE @at datetime2(7) = coalesce((SELECT min(visible_at) FROM ` + q + lookHint + `), sysutcdatetime());
	DECLARE @from bigint = (SELECT min(RowVersion) FROM ` + q + lookHint + `);
	WHILE @from IS NOT NULL
	BEGIN
		UPDATE q SET visible_at = @at, delivery_count = 0
		FROM ` + q + ` AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
		WHERE q.RowVersion >= @from AND q.RowVersion < @from + 1000 AND q.visible_at IS NULL;
		SET @from = (SELECT min(RowVersion) FROM ` + q + lookHint + ` WHERE RowVersion >= @from + 1000);
	END`
}

// onlineEditions is the condition that the edition of the server can create an index while rows are
// written: Enterprise and Developer, Azure SQL Database, and Azure SQL Managed Instance.
const onlineEditions = `convert(int, serverproperty(N'EngineEdition')) IN (3, 5, 8)`

// addedIndexes returns the statements that add indexes to a foreign table. NServiceBus has one on
// RowVersion that is not unique, and in newer tables one on Expires. A table of this transport has
// one on RowVersion that is unique.
func addedIndexes(q, table string) string {
	create := func(text string) string { return `EXEC (` + literal(text) + ` + @online);` }
	return `	DECLARE @online nvarchar(30) = CASE WHEN ` + onlineEditions + ` THEN N' WITH (ONLINE = ON)' ELSE N'' END;
	IF NOT EXISTS (SELECT 1 FROM sys.indexes AS i INNER JOIN sys.index_columns AS c ON c.object_id = i.object_id AND c.index_id = i.index_id AND c.key_ordinal > 0
		WHERE i.object_id = ` + table + ` AND i.is_unique = 1 AND i.has_filter = 0 AND i.is_disabled = 0
		GROUP BY i.index_id HAVING count(*) = 1 AND min(col_name(c.object_id, c.column_id)) = N'RowVersion')
		` + create(`CREATE UNIQUE INDEX holdfast_key ON `+q+` (RowVersion)`) + `
	IF indexproperty(` + table + `, N'holdfast_due', 'IndexID') IS NULL
		` + create(`CREATE INDEX holdfast_due ON `+q+` (visible_at, RowVersion)`) + `
	IF NOT EXISTS (SELECT 1 FROM sys.index_columns AS c
		WHERE c.object_id = ` + table + ` AND c.key_ordinal = 1 AND col_name(c.object_id, c.column_id) = N'Expires')
		` + create(`CREATE INDEX holdfast_expires ON `+q+` (Expires) WHERE Expires IS NOT NULL`)
}

// upgrade returns the statement that changes a table of version 1 into one of this version. It
// rewrites the table while it is locked. A row whose Id is no UUID gets a new one.
func upgrade(versions, name string, at place, table string) string {
	q := at.quoted()
	return `IF col_length(` + literal(q) + `, N'seq') IS NOT NULL AND col_length(` + literal(q) + `, N'lease_id') IS NOT NULL
BEGIN
	BEGIN TRANSACTION;
	EXEC (` + literal(`UPDATE `+q+` WITH (TABLOCKX) SET Id = convert(nvarchar(36), newid()) WHERE len(Id) <> 36 OR try_convert(uniqueidentifier, Id) IS NULL`) + `);
	DECLARE @drop nvarchar(max) = (SELECT ` + literal(`ALTER TABLE `+q+` DROP CONSTRAINT `) + ` + quotename(d.name) FROM sys.default_constraints AS d
		WHERE d.parent_object_id = ` + table + ` AND col_name(d.parent_object_id, d.parent_column_id) = N'Id');
	EXEC (@drop);
	ALTER TABLE ` + q + ` ALTER COLUMN Id uniqueidentifier NOT NULL;
	ALTER TABLE ` + q + ` ADD CONSTRAINT ` + defaultName(at.table, "Id") + ` DEFAULT newid() FOR Id;
	EXEC sp_rename ` + literal(q+".[seq]") + `, N'RowVersion', N'COLUMN';
	UPDATE ` + versions + ` SET version = 2 WHERE name = ` + name + `;
	COMMIT TRANSACTION;
END`
}
