package postgres

import (
	"strconv"
	"time"
)

// A handler's session has the handler's settings. The planner may choose there to read a small table as a whole, and
// cache that plan when the table grows. So the engine turns that off for its own statements in the transaction, until
// the table is too large for such a plan. Only VACUUM FULL and TRUNCATE shrink a table, as vacuum_truncate is off.
const (
	// largeTable is the size in bytes from which on the planner prefers an index to reading the table, whatever the
	// statistics.
	largeTable = 1 << 20
	// largeFor is the time for which a table that was large is taken to be large: until [table.largeUntil].
	largeFor = 10 * time.Second
)

// byIndex returns the statement that keeps the planner from reading whole tables in the rest of the transaction. It
// returns whether t is large.
func byIndex(t *table) string {
	return `SELECT set_config('enable_seqscan', 'off', true), coalesce(pg_relation_size(` + regclass(t.quoted) + `), 0) >= ` + strconv.Itoa(largeTable)
}
