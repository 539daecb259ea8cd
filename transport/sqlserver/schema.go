package sqlserver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// schema is the tables of a database schema, by the names of their queues. It composes their
// statements without a connection.
type schema struct {
	dialect.Settings
	database string // of the connection
	tables   dialect.Memo[*table]
	inboxes  dialect.Memo[*inboxTable]
}

// table returns the table of a queue, whose name Check has passed.
func (s *schema) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t
	}
	return s.tables.Add(queue, newTable(s.Schema, s.place(queue), traits{}))
}

// maxName is the longest identifier in UTF-16 code units.
const maxName = 128

func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("sqlserver: %s name is empty", what)
	case len(utf16.Encode([]rune(name))) > maxName:
		return fmt.Errorf("sqlserver: %s name %.300q is too long: SQL Server allows %d characters", what, name, maxName)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("sqlserver: %s name %.300q is not text that SQL Server can store", what, name)
	case strings.HasPrefix(name, "#"):
		return fmt.Errorf("sqlserver: %s name %.300q would be a temporary table's", what, name)
	case strings.HasSuffix(name, " "):
		return fmt.Errorf("sqlserver: %s name %.300q ends in a space, which SQL Server ignores", what, name)
	}
	return nil
}

// Check implements [tablequeue.Queues].
func (s *schema) Check(queue string) error {
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	p, err := s.parse(queue)
	taken := []string{dialect.SubscriptionTable, dialect.VersionTable, dialect.InboxTable, dialect.RecordTable, s.Routing}
	if err == nil && slices.ContainsFunc(taken, func(name string) bool { return strings.EqualFold(p.table, name) }) {
		err = fmt.Errorf("sqlserver: queue name %q is taken by a table of another kind", queue)
	}
	if err != nil {
		return &transport.NameError{Err: err}
	}
	return nil
}

// bracket returns the identifier of a name with any characters.
func bracket(name string) string { return "[" + strings.ReplaceAll(name, "]", "]]") + "]" }

func quote(schema, name string) string { return bracket(schema) + "." + bracket(name) }

// literal returns s as a string literal.
func literal(s string) string { return "N'" + strings.ReplaceAll(s, "'", "''") + "'" }

var _ transport.Addresser = (*schema)(nil)

// errAddress is why text with an at sign, or with a bracket at its beginning, is no queue.
var errAddress = errors.New("it has an at sign or begins with a bracket, so it must be an address: " +
	"table@[schema] or table@[schema]@[database], with each closing bracket within a name doubled")

// place is the place of a queue's table.
type place struct{ catalog, schema, table string } // no catalog is the connection's database

// parse returns the place of a queue's table. NServiceBus writes table@[schema]@[database]. It
// reads names of tables in brackets and schemas without brackets too. Text without an at sign and
// without a bracket at its beginning is the name of a table in the store's schema.
func (s *schema) parse(queue string) (place, error) {
	p := place{schema: s.Schema, table: queue}
	if isAddress(queue) {
		var ok bool
		if p, ok = unquotePlace(queue); !ok {
			return place{}, fmt.Errorf("sqlserver: queue %.300q: %w", queue, errAddress)
		}
	}
	if p.schema == "" {
		p.schema = s.Schema
	}
	if strings.EqualFold(p.catalog, s.database) {
		p.catalog = ""
	}
	if p.catalog != "" {
		if err := checkName("database", p.catalog); err != nil {
			return place{}, err
		}
	}
	return p, errors.Join(checkName("schema", p.schema), checkName("queue", p.table))
}

// isAddress reports whether text is read as an address, and not as the name of a table.
func isAddress(text string) bool { return strings.HasPrefix(text, "[") || strings.Contains(text, "@") }

// unquotePlace reads an address. The schema and the database are "" where it does not name them.
func unquotePlace(address string) (p place, ok bool) {
	rest := address
	for i, part := range []*string{&p.table, &p.schema, &p.catalog} {
		if i > 0 {
			if rest == "" {
				return p, true
			}
			if rest, ok = strings.CutPrefix(rest, "@"); !ok {
				return p, false
			}
		}
		if *part, rest, ok = identifier(rest); !ok {
			return p, false
		}
	}
	return p, rest == ""
}

// identifier reads a name in brackets, or one without brackets up to the next at sign.
func identifier(text string) (name, rest string, ok bool) {
	if strings.HasPrefix(text, "[") {
		return dialect.Unquote(text, '[', ']')
	}
	end := strings.IndexByte(text, '@')
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], end > 0
}

// place is parse for a queue that Check has passed, or that the store itself has listed: versions
// before addresses took more texts for the name of a table.
func (s *schema) place(queue string) place {
	p, err := s.parse(queue)
	if err != nil {
		return place{schema: s.Schema, table: queue}
	}
	return p
}

// Address implements [transport.Addresser]: table@[schema]@[database].
func (s *schema) Address(queue string) string {
	p, err := s.parse(queue)
	if err != nil {
		return queue
	}
	if p.catalog == "" {
		p.catalog = s.database
	}
	return p.address()
}

// ShortName implements [transport.Addresser]: the table, with the schema where that is not the
// store's, and with the database where that is not the connection's.
func (s *schema) ShortName(address string) string {
	if !isAddress(address) {
		return address
	}
	p, err := s.parse(address)
	if err != nil {
		return address
	}
	return p.queue(s.Schema)
}

// subscriber returns the name of a queue in the table of subscriptions: its own, or that for
// NServiceBus.
func (s *schema) subscriber(queue string) string {
	if s.Routing == "" {
		return queue
	}
	return s.Address(queue)
}

// plain returns the table's name as it stands in an address.
func (p place) plain() string {
	if isAddress(p.table) {
		return bracket(p.table)
	}
	return p.table
}

func (p place) address() string {
	address := p.plain() + "@" + bracket(p.schema)
	if p.catalog != "" {
		address += "@" + bracket(p.catalog)
	}
	return address
}

// queue returns the short name of the queue in a store whose queues are in schema.
func (p place) queue(schema string) string {
	if p.catalog == "" && p.schema == schema {
		return p.plain()
	}
	return p.address()
}

// database returns the text before the name of a view of the catalog, which is that of the place's
// database.
func (p place) database() string {
	if p.catalog == "" {
		return ""
	}
	return bracket(p.catalog) + "."
}

// quoted returns the identifier of the place.
func (p place) quoted() string {
	return p.database() + quote(p.schema, p.table)
}

// Foreign implements [tablequeue.Foreign].
func (s *schema) Foreign(queue string) bool { return s.table(queue).traits.foreign }

// inbox returns the statements on an inbox.
func (s *schema) inbox(name string) *inboxTable {
	if t, ok := s.inboxes.Load(name); ok {
		return t
	}
	return s.inboxes.Add(name, newInbox(s.Schema, s.place(name)))
}

// records returns the statements on the table of records.
func (s *schema) records() *recordTable { return newRecords(s.Schema) }

func (s *schema) delayed(queue string) delayed {
	return newDelayed(s.delayedPlace(queue), s.place(queue))
}

// delayedPlace returns the place of the table with the delayed messages of NServiceBus beside a
// queue.
func (s *schema) delayedPlace(queue string) place {
	at := s.place(queue)
	at.table += tablequeue.DelayedSuffix
	return at
}

func (s *schema) handOver(queue string) handOver {
	return newHandOver(s.place(queue), s.delayedPlace(queue))
}
