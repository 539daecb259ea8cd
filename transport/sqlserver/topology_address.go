package sqlserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Addresser = (*store)(nil)

// errAddress is why text with an at sign, or with a bracket at its beginning, is no queue.
var errAddress = errors.New("it has an at sign or begins with a bracket, so it must be an address: " +
	"table@[schema] or table@[schema]@[database], with each closing bracket within a name doubled")

// place is the place of a queue's table.
type place struct{ catalog, schema, table string } // no catalog is the connection's database

// parse returns the place of a queue's table. NServiceBus writes table@[schema]@[database]. It
// reads names of tables in brackets and schemas without brackets too. Text without an at sign and
// without a bracket at its beginning is the name of a table in the store's schema.
func (s *store) parse(queue string) (place, error) {
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
func (s *store) place(queue string) place {
	p, err := s.parse(queue)
	if err != nil {
		return place{schema: s.Schema, table: queue}
	}
	return p
}

// Address implements [transport.Addresser]: table@[schema]@[database].
func (s *store) Address(queue string) string {
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
func (s *store) ShortName(address string) string {
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
func (s *store) subscriber(queue string) string {
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
