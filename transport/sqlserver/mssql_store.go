package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
)

var (
	_ tablequeue.Store      = (*mssqlStore)(nil)
	_ tablequeue.Transactor = (*mssqlStore)(nil)
	_ tablequeue.Orphaner   = (*mssqlStore)(nil)
)

// mssqlStore is the SQL Server dialect of the lease engine. It is no [tablequeue.Waker]: receivers poll.
type mssqlStore struct {
	database string
	schema   string
	db       *sql.DB // the engine's statements
	handlers *sql.DB // handlers' transactions
	tables   sync.Map

	life context.Context //nolint:containedctx // of handlers' transactions: ends when Close begins
	end  context.CancelFunc
}

// on is what statements are run on: connections of the pool, or a transaction.
type on interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// connector marks the errors of connecting: nothing has been asked of the server then.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

type connectError struct{ cause error }

func (e *connectError) Error() string { return "connect: " + e.cause.Error() }
func (e *connectError) Unwrap() error { return e.cause }

func newMSSQLStore(c connector, schema string, maxTx int) *mssqlStore {
	s := &mssqlStore{schema: schema, db: mssqlDB(c, mssqlPool), handlers: mssqlDB(c, maxTx)}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// connect asks which database the server has given us.
func (s *mssqlStore) connect(ctx context.Context) error {
	if err := s.db.QueryRowContext(ctx, mssqlDatabase).Scan(&s.database); err != nil {
		return &mssqlError{doing: "open", cause: err}
	}
	return nil
}

// Close implements [tablequeue.Store].
func (s *mssqlStore) Close() error {
	s.end()
	return errors.Join(s.handlers.Close(), s.db.Close())
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
	if _, known := s.tables.Load(queue); known {
		return nil
	}
	return checkMSSQLQueue(queue)
}

func checkMSSQLQueue(queue string) error {
	if strings.EqualFold(queue, subscriptionTable) {
		return fmt.Errorf("mssql: queue name %q is taken by the table of subscriptions", queue)
	}
	return checkMSSQLName("queue", queue)
}

// table is the queue's table; Check has passed its name.
func (s *mssqlStore) table(queue string) *mssqlTable {
	if t, ok := s.tables.Load(queue); ok {
		return t.(*mssqlTable) //nolint:errcheck // nothing else is in the map
	}
	t, _ := s.tables.LoadOrStore(queue, newMSSQLTable(s.schema, queue))
	return t.(*mssqlTable) //nolint:errcheck // as above
}

// each runs a query and calls row, which scans, for every row of its first result.
func each(ctx context.Context, o on, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := o.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// list is a parameter for OPENJSON: a list of any length in a statement whose text, and so whose plan,
// is always the same. What is in it are numbers and texts, which always have a form in JSON.
func list(name string, values any) sql.NamedArg {
	doc, _ := json.Marshal(values) //nolint:errchkjson // see above
	return sql.Named(name, mssql.NVarCharMax(doc))
}
