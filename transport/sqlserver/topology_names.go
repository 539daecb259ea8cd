package sqlserver

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// place is the place of a queue's table.
type place struct{ catalog, schema, table string } // no catalog is the connection's database

// addressPattern matches a queue name with a schema, and perhaps a database of the same server, as NServiceBus writes
// reply addresses.
var addressPattern = regexp.MustCompile(`^([^@]+)@\[((?:[^\]]|\]\])+)\](?:@\[((?:[^\]]|\]\])+)\])?$`)

// place returns the place of a queue's table.
func (s *store) place(queue string) place {
	parts := addressPattern.FindStringSubmatch(queue)
	if parts == nil {
		return place{schema: s.Schema, table: queue}
	}
	p := place{table: parts[1], schema: unbracket(parts[2]), catalog: unbracket(parts[3])}
	if strings.EqualFold(p.catalog, s.database) {
		p.catalog = ""
	}
	return p
}

// Name implements [tablequeue.Namer]. It leaves out the store's own schema.
func (s *store) Name(queue string) string {
	if !strings.HasSuffix(queue, "]") {
		return queue
	}
	return s.place(queue).queue(s.Schema)
}

// address returns the name of a queue in the table of subscriptions: its own, or that for NServiceBus.
func (s *store) address(queue string) string {
	if s.Routing == "" {
		return queue
	}
	p := s.place(queue)
	if p.catalog == "" {
		p.catalog = s.database
	}
	return p.address()
}

func (p place) address() string {
	address := p.table + "@" + bracket(p.schema)
	if p.catalog != "" {
		address += "@" + bracket(p.catalog)
	}
	return address
}

// queue returns the name of the queue in a store whose queues are in schema.
func (p place) queue(schema string) string {
	if p.catalog == "" && p.schema == schema {
		return p.table
	}
	return p.address()
}

// quoted returns the identifier of the place.
func (p place) quoted() string {
	if p.catalog != "" {
		return bracket(p.catalog) + "." + quote(p.schema, p.table)
	}
	return quote(p.schema, p.table)
}

// maxName is the longest identifier in UTF-16 code units.
const maxName = 128

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("sqlserver: %s name is empty", what)
	case len(utf16.Encode([]rune(name))) > maxName:
		return fmt.Errorf("sqlserver: %s name %q is too long: SQL Server allows %d characters", what, name, maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("sqlserver: %s name %q is not text that SQL Server can store", what, name)
	case strings.HasPrefix(name, "#"):
		return fmt.Errorf("sqlserver: %s name %q would be a temporary table's", what, name)
	case strings.HasSuffix(name, " "):
		return fmt.Errorf("sqlserver: %s name %q ends in a space, which SQL Server ignores", what, name)
	}
	return nil
}

// Check implements [tablequeue.Queues].
func (s *store) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	p := s.place(queue)
	if p.catalog != "" {
		if err := checkName("database", p.catalog); err != nil {
			return err
		}
	}
	if err := checkName("schema", p.schema); err != nil {
		return err
	}
	if p.table != "" && slices.ContainsFunc([]string{dialect.SubscriptionTable, dialect.VersionTable, s.Routing}, func(taken string) bool {
		return strings.EqualFold(p.table, taken)
	}) {
		return fmt.Errorf("sqlserver: queue name %q is taken by a table of another kind", queue)
	}
	return checkName("queue", p.table)
}

// bracket returns the identifier of a name with any characters.
func bracket(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func unbracket(name string) string { return strings.ReplaceAll(name, "]]", "]") }

func quote(schema, name string) string { return bracket(schema) + "." + bracket(name) }

// literal returns s as a string literal.
func literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }
