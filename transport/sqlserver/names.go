package sqlserver

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// maxName is the longest identifier in bytes: PostgreSQL silently cuts longer ones off, so two
// queues could become one.
const maxName = 63

// subscriptionTable is in the same schema as the queues.
const subscriptionTable = "holdfast_subscriptions"

// table is a queue's table. Its statements are written once.
type table struct {
	name   string // the queue
	quoted string // with its schema, for use in statements
	claim, renew, abandon, orphans,
	cancel, update string
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("postgres: %s name is empty", what)
	case len(name) > maxName:
		return fmt.Errorf("postgres: %s name %q has %d bytes: PostgreSQL allows %d", what, name, len(name), maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("postgres: %s name %q is not text that PostgreSQL can store", what, name)
	}
	return nil
}

// quote makes name an identifier, whatever is in it.
func quote(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// Check implements [tablequeue.Queues].
func (s *store) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	if queue == subscriptionTable {
		return fmt.Errorf("postgres: queue name %q is taken by the table of subscriptions", queue)
	}
	return checkName("queue", queue)
}

// table is the queue's table; Check has passed its name.
func (s *store) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t.(*table) //nolint:errcheck // nothing else is in the map
	}
	t, _ := s.tables.LoadOrStore(queue, newTable(s.schema, queue))
	return t.(*table) //nolint:errcheck // as above
}
