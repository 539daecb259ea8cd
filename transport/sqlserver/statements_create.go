package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

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
