package postgres

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// maxName is the longest identifier in bytes. PostgreSQL truncates longer ones without an error, so
// that two queues could become one.
const maxName = 63

// table is a queue's table with its statements.
type table struct {
	name      string      // the queue
	plain     string      // without a schema
	quoted    string      // with its schema, for use in statements
	foreign   atomic.Bool // a foreign table
	takesRows atomic.Bool // a caller's transaction can insert rows, as far as is known
	front     front

	filtersLogged atomic.Bool
	filtersAt     atomic.Int64 // when lookAtFilters looked, in nanoseconds since 1970
	filtered      atomic.Bool  // by that look
	largeUntil    atomic.Int64 // in nanoseconds since 1970: until then the table is taken to be large
	claim, renew, abandon, orphans, restore,
	cancel, update, sweep, purge, lock, take, byIndex string
	find, record, forget, forgetKeys string       // of an inbox
	forgotten                        atomic.Int64 // the time, in microseconds since 1970, up to which old ids were removed
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("postgres: %s name is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("postgres: %s name %.300q has %d bytes: PostgreSQL allows %d", what, name, len(name), maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("postgres: %s name %.300q is not text that PostgreSQL can store", what, name)
	}
	return nil
}

// truncated returns as much of name as fits into n bytes.
func truncated(name string, n int) string { return strings.ToValidUTF8(name[:min(n, len(name))], "") }

// quote returns the identifier of a name with any characters.
func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// Check implements [tablequeue.Queues].
func (s *store) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	_, name, err := s.parse(queue)
	if err == nil && slices.Contains([]string{dialect.SubscriptionTable, dialect.VersionTable, dialect.RecordTable, s.Routing}, name) {
		err = fmt.Errorf("postgres: queue name %q is taken by a table of another kind", queue)
	}
	if err != nil {
		return &transport.NameError{Err: err}
	}
	return nil
}

// table returns the table of a queue, whose name Check has passed.
func (s *store) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t
	}
	return s.tables.Add(queue, s.newTable(queue))
}
