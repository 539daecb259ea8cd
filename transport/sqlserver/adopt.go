package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// Statements of an installer that adopts tables.
const (
	// tryInstallLock returns a negative number while another process installs. The lock is the
	// session's.
	tryInstallLock = `DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0;
SELECT @got;`

	freeInstallLock = `EXEC sp_releaseapplock @Resource = @name, @LockOwner = 'Session';`

	canIndexOnline = `SELECT CASE WHEN ` + onlineEditions + ` THEN 1 ELSE 0 END`
)

// An installer that waits logs that at first, and then each progressEvery.
const progressEvery = 5 * time.Second

// adopter changes the tables of queues into tables of this version, on a session of its own that
// keeps other installers away. It never waits for a lock in a transaction.
type adopter struct {
	*installer
	conn *sql.Conn
	said time.Time // of the last line about progress
}

// adopt adds the columns and indexes of this transport to the tables of NServiceBus among the
// plan's, except shared ones, which are used as they are. It changes tables of version 1 into those
// of this version. Messages stay.
func (in *installer) adopt(ctx context.Context, plan transport.Plan) error {
	conn, err := in.engine.Conn(ctx)
	if err != nil {
		return err
	}
	a := &adopter{installer: in, conn: conn}
	defer a.end(ctx)
	if err := a.lock(ctx); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := a.queue(ctx, q); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

// end releases the lock. Where the session does not answer it is closed, and the server releases
// the lock.
func (a *adopter) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := a.conn.ExecContext(ctx, freeInstallLock, a.lockName()); err != nil {
		_ = a.conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
	_ = a.conn.Close()
}

func (a *adopter) lockName() sql.NamedArg { return sql.Named("name", installerName(a.Schema)) }

// lock waits until no other process installs.
func (a *adopter) lock(ctx context.Context) error {
	return a.again(ctx, "another installer is at work: waiting until it has ended", func() (bool, error) {
		got, err := changed(ctx, a.conn, tryInstallLock, a.lockName())
		return got < 0, err
	})
}

// again calls try until it reports false, with pauses, and logs why.
func (a *adopter) again(
	ctx context.Context, why string, try func() (bool, error), attrs ...slog.Attr,
) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		busy, err := try()
		if err != nil || !busy {
			return err
		}
		if time.Since(a.said) >= progressEvery {
			a.said = time.Now()
			a.log.LogAttrs(ctx, slog.LevelWarn, why, attrs...) //nolint:sloglint // the texts are constants of the callers
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", why, err)
		}
	}
}

func (a *adopter) queue(ctx context.Context, q transport.Queue) error {
	queue := q.Name
	columns, err := a.columns(ctx, queue)
	if err != nil || len(columns) == 0 {
		return err
	}
	at := a.place(queue)
	statements, traits := newAdoption(a.Schema, at), traits{}.of(columns)
	switch {
	case traits.foreign && q.Shared:
		return nil
	case traits.foreign && at.catalog != "":
		return fmt.Errorf("its table is in database %q: adopt it by an endpoint of that database", at.catalog)
	case traits.foreign:
		return a.foreign(ctx, queue, statements)
	case traits.first:
		a.log.WarnContext(ctx, "the table is rewritten, and is locked for that time", slog.String("queue", queue))
		return a.change(ctx, queue, statements.upgrade)
	}
	return nil
}

// foreign adopts a table of NServiceBus.
func (a *adopter) foreign(ctx context.Context, queue string, statements adoption) error {
	if parts, err := unfitParts(ctx, a.conn, statements.unfit); err != nil || len(parts) > 0 {
		return cmp.Or(err, refusal(parts))
	}
	if err := a.warnOffline(ctx, queue); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "adopting the table of NServiceBus", slog.String("queue", queue))
	for _, statement := range []string{statements.columns, statements.fill, statements.indexes, statements.lease} {
		if err := a.change(ctx, queue, statement); err != nil {
			return err
		}
	}
	a.tables.Set(queue, newTable(a.Schema, a.place(queue), traits{}))
	return nil
}

// change executes a statement that changes a table: again while another session keeps the table or
// a row locked.
func (a *adopter) change(ctx context.Context, queue, statement string) error {
	const why = "the table is locked by another transaction, such as that of a sender, a dump or a receiver of NServiceBus: trying again"
	return a.again(ctx, why, func() (bool, error) {
		_, err := a.conn.ExecContext(ctx, adoptionWait+statement)
		if numberOf(err) == lockTimeoutExceeded {
			return true, nil
		}
		return false, err
	}, slog.String("queue", queue))
}

// unfitParts returns the parts of a table that NServiceBus does not create.
func unfitParts(ctx context.Context, o on, query string) (found []string, err error) {
	err = each(ctx, o, func(rows *sql.Rows) error {
		var kind, name, detail string
		err := rows.Scan(&kind, &name, &detail)
		found = append(found, strings.TrimSpace(kind+" "+bracket(name)+" "+detail))
		return err
	}, query)
	return found, err
}

// refusal is the error about a table with parts that NServiceBus does not create.
func refusal(parts []string) error {
	return errors.New("its table is not as NServiceBus creates it, and is not adopted: found " + strings.Join(parts, ", "))
}

// warnOffline says that senders wait while indexes are created, where the edition cannot do that
// online.
func (a *adopter) warnOffline(ctx context.Context, queue string) error {
	online, err := changed(ctx, a.conn, canIndexOnline)
	if err == nil && online == 0 {
		a.log.WarnContext(ctx, "this edition of SQL Server cannot create indexes online: senders wait while the indexes are created",
			slog.String("queue", queue))
	}
	return err
}

// adoptionScript returns the batches of a script that adopt tables. After one that is refused, no
// further statement of the script is executed.
func (d *ddl) adoptionScript(plan transport.Plan) (steps []step) {
	for _, q := range plan.Queues {
		of, a := fmt.Sprintf("queue %q", q.Name), newAdoption(d.Schema, d.place(q.Name))
		steps = append(steps, step{of, repeated(q.Name, a.upgrade)})
		if q.Shared {
			continue
		}
		steps = append(steps, step{of, d.refused(q.Name, a.unfit)})
		for _, statement := range []string{a.columns, a.fill, a.indexes, a.lease} {
			steps = append(steps, step{of, repeated(q.Name, statement)})
		}
	}
	return append(steps, step{"locks", strings.TrimSpace(anyLockWait)})
}

// refused returns the batch that lists the parts of a table which keep it from being adopted, and
// then ends the script.
func (d *ddl) refused(queue, unfit string) string {
	q := d.place(queue).quoted()
	return `IF object_id(` + literal(q) + `, N'U') IS NOT NULL AND col_length(` + literal(q) + `, N'lease_id') IS NULL
BEGIN
	DECLARE @found TABLE (kind nvarchar(60), name nvarchar(300), detail nvarchar(600));
	INSERT INTO @found
` + unfit + `
	IF EXISTS (SELECT 1 FROM @found)
	BEGIN
		SELECT kind, name, detail FROM @found;
		RAISERROR (N'%s', 16, 1, ` + literal(fmt.Sprintf("queue %q: its table is not as NServiceBus creates it, and is not adopted", queue)) + `);
		SET NOEXEC ON;
	END
END`
}

// repeated returns the batch that executes a statement of an adoption until the table is not locked
// by others.
func repeated(queue, statement string) string {
	return `DECLARE @again bit = 1;
WHILE @again = 1
BEGIN
	BEGIN TRY
		` + strings.TrimSpace(adoptionWait) + `
		` + strings.ReplaceAll(statement, "\n", "\n\t\t") + `
		SET @again = 0;
	END TRY
	BEGIN CATCH
		IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
		IF error_number() <> ` + fmt.Sprint(lockTimeoutExceeded) + ` THROW;
		RAISERROR (N'%s', 0, 1, ` + literal(fmt.Sprintf("queue %q: its table is locked by another transaction: trying again", queue)) + `) WITH NOWAIT;
		WAITFOR DELAY '00:00:01';
	END CATCH
END`
}

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
