package postgres

import (
	"strconv"
	"sync/atomic"
	"time"
)

// A handler's session has the handler's settings. There the planner may choose to read a small table as a whole, and keep that
// plan when the table has grown. So the engine switches that off for what it does in the transaction, until the table is too
// large for such a plan. A table does not shrink (vacuum_truncate is off) but by VACUUM FULL and TRUNCATE.
const (
	// largeTable is the size in bytes from which on a look into an index is cheaper than reading the table, whatever the
	// planner expects to find there.
	largeTable = 1 << 20
	// largeFor is for how long a table is taken to be large after it was found to be.
	largeFor = 10 * time.Second
)

// byIndex returns the text that keeps the planner from reading whole tables for what follows in the same transaction, and
// reports whether t is large.
func byIndex(t *table) string {
	return `SELECT set_config('enable_seqscan', 'off', true), coalesce(pg_relation_size(to_regclass(` + literal(t.quoted) + `)), 0) >= ` + strconv.Itoa(largeTable)
}

// size remembers that a table is large.
type size struct{ largeUntil atomic.Int64 } // in nanoseconds since 1970

func (s *size) large() bool { return time.Now().UnixNano() < s.largeUntil.Load() }

func (s *size) found(large bool) {
	if large {
		s.largeUntil.Store(time.Now().Add(largeFor).UnixNano())
	}
}
