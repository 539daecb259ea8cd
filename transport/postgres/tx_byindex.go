package postgres

import (
	"strconv"
	"sync/atomic"
	"time"
)

// A handler's session has the handler's settings. The planner may choose there to read a small table as a whole, and
// cache that plan when the table grows. So the engine turns that off for its own statements in the transaction, until
// the table is too large for such a plan. Only VACUUM FULL and TRUNCATE shrink a table, as vacuum_truncate is off.
const (
	// largeTable is the size in bytes from which on the planner prefers an index to reading the table, whatever the
	// statistics.
	largeTable = 1 << 20
	// largeFor is the time for which a table that was large is taken to be large.
	largeFor = 10 * time.Second
)

// byIndex returns the statement that keeps the planner from reading whole tables in the rest of the transaction. It
// returns whether t is large.
func byIndex(t *table) string {
	return `SELECT set_config('enable_seqscan', 'off', true), coalesce(pg_relation_size(` + regclass(t.quoted) + `), 0) >= ` + strconv.Itoa(largeTable)
}

// size notes that a table is large.
type size struct{ largeUntil atomic.Int64 } // in nanoseconds since 1970

func (s *size) large() bool { return time.Now().UnixNano() < s.largeUntil.Load() }

func (s *size) found(large bool) {
	if large {
		s.largeUntil.Store(time.Now().Add(largeFor).UnixNano())
	}
}
