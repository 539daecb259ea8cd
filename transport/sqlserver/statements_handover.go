package sqlserver

// leased is the condition of a row that a claim holds now.
const leased = `lease_id IS NOT NULL AND visible_at > sysutcdatetime()`

// handOver has the statements that make a queue one of NServiceBus.
type handOver struct {
	holders string // read also what others have locked
	fill    string // replaces bodies that are null, which NServiceBus does not store
	create  string // creates the table of delayed messages
	lock    string // of the table, until the transaction ends
	leased  string
	end     string // removes the columns that NServiceBus does not have
}

func newHandOver(at, delayed place) handOver {
	q, d := at.quoted(), delayed.quoted()
	table := `object_id(` + literal(q) + `, N'U')`
	return handOver{
		holders: `SELECT coalesce(lease_owner, N''), count_big(*) FROM ` + q + ` WITH (READUNCOMMITTED)
WHERE ` + leased + ` GROUP BY lease_owner ORDER BY lease_owner`,
		fill: `UPDATE q SET Body = 0x FROM ` + q + ` AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) WHERE q.Body IS NULL;`,
		create: `IF object_id(` + literal(d) + `, N'U') IS NULL
	CREATE TABLE ` + d + ` (
		Headers nvarchar(max) NOT NULL,
		Body varbinary(max),
		Due datetime NOT NULL,
		RowVersion bigint IDENTITY NOT NULL,
		INDEX Index_Due NONCLUSTERED (Due));`,
		lock:   `SELECT TOP (1) 1 FROM ` + q + ` WITH (TABLOCKX, HOLDLOCK)`,
		leased: `SELECT count_big(*) FROM ` + q + ` WHERE ` + leased,
		end: `DECLARE @drop nvarchar(max) = N'';
SELECT @drop += ` + literal(`ALTER TABLE `+q+` DROP CONSTRAINT `) + ` + quotename(d.name) + N';' FROM sys.default_constraints AS d
WHERE d.parent_object_id = ` + table + ` AND col_name(d.parent_object_id, d.parent_column_id) IN (N'visible_at', N'delivery_count');
EXEC (@drop);
DROP INDEX holdfast_due ON ` + q + `;
ALTER TABLE ` + q + ` DROP COLUMN visible_at, delivery_count, lease_id, lease_owner, last_error;`,
	}
}

// moving has the statements that move delayed messages from a queue into the table of delayed
// messages of NServiceBus.
type moving struct{ find, move string }

// newMoving returns the statements for the rows that become visible later; with all, for all rows
// without a lease.
func newMoving(from *table, delayed place, all bool) moving {
	which := `visible_at > sysutcdatetime() AND lease_id IS NULL`
	if all {
		which = `NOT (` + leased + `)`
	}
	key := from.traits.key()
	return moving{
		find: `SELECT TOP (@limit) ` + key + `, Headers FROM ` + from.quoted + ` WITH (UPDLOCK, ROWLOCK, READCOMMITTEDLOCK)
WHERE ` + which + ` ORDER BY visible_at, ` + key,

		// A datetime has 3.3 ms, to which it is rounded: 2 ms more keep it from being early.
		move: `DECLARE @gone TABLE (Headers nvarchar(max), Body varbinary(max), visible_at datetime2(7));
DELETE q OUTPUT r.headers, deleted.Body, deleted.visible_at INTO @gone
FROM OPENJSON(@rows) WITH (seq bigint '$[0]', headers nvarchar(max) '$[1]') AS r
INNER LOOP JOIN ` + from.quoted + ` AS q WITH (ROWLOCK) ON q.` + key + ` = r.seq;
INSERT INTO ` + delayed.quoted() + ` (Headers, Body, Due)
SELECT g.Headers, coalesce(g.Body, 0x), convert(datetime, dateadd(millisecond, 2, g.visible_at)) FROM @gone AS g ORDER BY g.visible_at;` + selectCount,
	}
}
