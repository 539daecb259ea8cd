package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

var _ transport.Addresser = (*store)(nil)

// errAddress is why text that begins with a quotation mark is no queue. NServiceBus quotes the
// names of tables too.
var errAddress = errors.New(`it begins with a quotation mark, so it must be an address: "table" or "schema"."table", ` +
	`with each quotation mark within a name doubled`)

// parse returns the schema and the table of a queue. Text that does not begin with a quotation mark
// is the name of a table in the store's schema, also with dots.
func (s *store) parse(queue string) (schema, table string, err error) {
	schema, table = s.Schema, queue
	if strings.HasPrefix(queue, `"`) {
		var ok bool
		if schema, table, ok = s.unquote(queue); !ok {
			return "", "", fmt.Errorf("postgres: queue %.300q: %w", queue, errAddress)
		}
	}
	return schema, table, errors.Join(checkName("schema", schema), checkName("queue", table))
}

// unquote reads an address.
func (s *store) unquote(address string) (schema, table string, ok bool) {
	first, rest, ok := dialect.Unquote(address, '"', '"')
	if !ok || rest == "" {
		return s.Schema, first, ok
	}
	rest, dot := strings.CutPrefix(rest, ".")
	second, rest, ok := dialect.Unquote(rest, '"', '"')
	return first, second, dot && ok && rest == ""
}

// split is parse for a queue that Check has passed, or that the store itself has listed: versions
// before addresses took any text for the name of a table.
func (s *store) split(queue string) (schema, table string) {
	schema, table, err := s.parse(queue)
	if err != nil {
		return s.Schema, queue
	}
	return schema, table
}

// shortName returns the name of the queue with that table.
func (s *store) shortName(schema, table string) string {
	switch {
	case schema != s.Schema:
		return quote(schema, table)
	case strings.HasPrefix(table, `"`): // without quotation marks it would be an address
		return quote(table)
	}
	return table
}

// Address implements [transport.Addresser]: "schema"."table".
func (s *store) Address(queue string) string {
	schema, table, err := s.parse(queue)
	if err != nil {
		return queue
	}
	return quote(schema, table)
}

// ShortName implements [transport.Addresser]: the table, with its schema where that is not the
// store's.
func (s *store) ShortName(address string) string {
	if !strings.HasPrefix(address, `"`) {
		return address
	}
	schema, table, err := s.parse(address)
	if err != nil {
		return address
	}
	return s.shortName(schema, table)
}
