package sqlserver

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// mssqlPlace is where a queue's table is.
type mssqlPlace struct{ catalog, schema, table string } // no catalog is the connection's database

// mssqlAddress is a queue name with a schema, and a database of the same server, as NServiceBus writes the
// address of who wants a reply.
var mssqlAddress = regexp.MustCompile(`^([^@]+)@\[((?:[^\]]|\]\])+)\](?:@\[((?:[^\]]|\]\])+)\])?$`)

// place finds the table of a queue.
func (s *mssqlStore) place(queue string) mssqlPlace {
	parts := mssqlAddress.FindStringSubmatch(queue)
	if parts == nil {
		return mssqlPlace{schema: s.schema, table: queue}
	}
	p := mssqlPlace{table: parts[1], schema: unbracket(parts[2]), catalog: unbracket(parts[3])}
	if strings.EqualFold(p.catalog, s.database) {
		p.catalog = ""
	}
	return p
}

// Name implements [tablequeue.Namer]: without its schema where that is ours.
func (s *mssqlStore) Name(queue string) string {
	if !strings.HasSuffix(queue, "]") {
		return queue
	}
	return s.place(queue).queue(s.schema)
}

// address is a queue as NServiceBus names it.
func (s *mssqlStore) address(queue string) string {
	p := s.place(queue)
	if p.catalog == "" {
		p.catalog = s.database
	}
	return p.address()
}

func (p mssqlPlace) address() string {
	address := p.table + "@" + bracket(p.schema)
	if p.catalog != "" {
		address += "@" + bracket(p.catalog)
	}
	return address
}

// queue is what a store with its queues in schema calls the queue there.
func (p mssqlPlace) queue(schema string) string {
	if p.catalog == "" && p.schema == schema {
		return p.table
	}
	return p.address()
}

// quoted is the place as statements name it.
func (p mssqlPlace) quoted() string {
	if p.catalog != "" {
		return bracket(p.catalog) + "." + mssqlQuote(p.schema, p.table)
	}
	return mssqlQuote(p.schema, p.table)
}

// maxMSSQLName is the longest identifier in UTF-16 code units.
const maxMSSQLName = 128

func checkMSSQLName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("mssql: %s name is empty", what)
	case len(utf16.Encode([]rune(name))) > maxMSSQLName:
		return fmt.Errorf("mssql: %s name %q is too long: SQL Server allows %d characters", what, name, maxMSSQLName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("mssql: %s name %q is not text that SQL Server can store", what, name)
	case strings.HasPrefix(name, "#"):
		return fmt.Errorf("mssql: %s name %q would be a temporary table's", what, name)
	case strings.HasSuffix(name, " "):
		return fmt.Errorf("mssql: %s name %q ends in a space, which SQL Server ignores", what, name)
	}
	return nil
}

// Check implements [tablequeue.Queues].
func (s *mssqlStore) Check(queue string) error {
	if _, known := s.tables.load(queue); known {
		return nil
	}
	p := s.place(queue)
	if p.catalog != "" {
		if err := checkMSSQLName("database", p.catalog); err != nil {
			return err
		}
	}
	if err := checkMSSQLName("schema", p.schema); err != nil {
		return err
	}
	if p.table != "" && slices.ContainsFunc([]string{subscriptionTable, versionTable, s.routing}, func(taken string) bool {
		return strings.EqualFold(p.table, taken)
	}) {
		return fmt.Errorf("mssql: queue name %q is taken by a table of another kind", queue)
	}
	return checkMSSQLName("queue", p.table)
}

// bracket makes name an identifier, whatever is in it.
func bracket(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func unbracket(name string) string { return strings.ReplaceAll(name, "]]", "]") }

func mssqlQuote(schema, name string) string { return bracket(schema) + "." + bracket(name) }

// mssqlText is s as a literal.
func mssqlText(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }
