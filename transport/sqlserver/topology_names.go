package sqlserver

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

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
func (s *store) Check(queue string) error {
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
