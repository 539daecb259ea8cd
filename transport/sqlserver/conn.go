package sqlserver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/callback"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

var (
	_ tablequeue.Store    = (*store)(nil)
	_ tablequeue.Orphaner = (*store)(nil)
	_ tablequeue.Sweeper  = (*store)(nil)
	_ tablequeue.Locks    = (*store)(nil)
	_ tablequeue.Timed    = (*store)(nil)
	_ tablequeue.Foreign  = (*store)(nil)
	_ tablequeue.Outages  = (*store)(nil)
)

// store is the SQL Server dialect of the lease engine. It is no [tablequeue.Waker]: receivers poll.
type store struct {
	database string
	dialect.Settings
	adopts   bool // Install changes tables that exist
	log      *slog.Logger
	db       *sql.DB // the engine's statements
	handlers *sql.DB // handlers' transactions
	tables   dialect.Memo[*table]
	inboxes  dialect.Memo[*inboxTable]
	detector dialect.Detector // of the tables' traits
	clock    dialect.Clock    // of the server

	life context.Context //nolint:containedctx // of handlers' transactions: ends when Close begins
	end  context.CancelFunc
}

// on executes statements: on connections of the pool, or in a transaction.
type on interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// connector marks the errors of connecting, after which no statement was sent.
type connector struct{ driver.Connector }

// connectTimeout bounds a call of a connector, which may be the user's.
const connectTimeout = time.Minute

var errNoConn = errors.New("the connector has not returned in time")

// Connect waits for the connector until ctx ends.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, errNoConn)
	defer cancel()
	conn, err := callback.Open(ctx, func() (driver.Conn, error) { return c.Connector.Connect(ctx) })
	if err != nil {
		return nil, &connectError{err}
	}
	return conn, nil
}

type connectError struct{ cause error }

func (e *connectError) Error() string { return "connect: " + e.cause.Error() }
func (e *connectError) Unwrap() error { return e.cause }

func newStore(c connector, set dialect.Settings) *store {
	s := &store{Settings: set, log: slog.New(slog.DiscardHandler), db: openDB(c, poolSize), handlers: openDB(c, set.MaxTx)}
	s.detector = dialect.Detector{Suspect: refusedByTrait, Detect: s.detectTraits, Foreign: s.Foreign}
	s.clock.Log = s.log
	s.clock.Restore, s.clock.MaxRestored = restorer(s), tablequeue.MaxSwept
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// minLevel is the lowest compatibility level with OPENJSON: that of SQL Server 2016.
const minLevel = 130

// connect reads the name and the compatibility level of the database.
func (s *store) connect(ctx context.Context) error {
	var level int
	err := s.db.QueryRowContext(ctx, databaseAndLevel).Scan(&s.database, &level)
	if err == nil && level < minLevel {
		err = fmt.Errorf("database %q has compatibility level %d, want %d or above: ALTER DATABASE %s SET COMPATIBILITY_LEVEL = %d",
			s.database, level, minLevel, bracket(s.database), minLevel)
	}
	return failed(err, "open")
}

// Close implements [tablequeue.Store].
func (s *store) Close() error {
	s.end()
	return errors.Join(s.handlers.Close(), s.db.Close())
}

// table returns the table of a queue, whose name Check has passed.
func (s *store) table(queue string) *table {
	if t, ok := s.tables.Load(queue); ok {
		return t
	}
	return s.tables.Add(queue, newTable(s.Schema, s.place(queue), traits{}))
}

// each executes a query and calls row, which scans, for each row of its first result.
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

// values appends the values of a result's only column.
func values[T any](to *[]T) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var value T
		err := rows.Scan(&value)
		*to = append(*to, value)
		return err
	}
}

// list returns a parameter for OPENJSON: a list of any length for a statement whose text, and so
// whose plan, is always the same. Its values are numbers and texts, which can always be encoded.
func list(name string, values any) sql.NamedArg {
	doc, _ := json.Marshal(values) //nolint:errchkjson // see above
	return sql.Named(name, mssql.NVarCharMax(doc))
}
