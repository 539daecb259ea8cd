package sqlserver

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

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
