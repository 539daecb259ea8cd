package drivertests

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

func TestATransactionOfAnotherDatabaseSystemIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	theirs := map[string]*sql.DB{"a system without SQLSTATEs": sql.OpenDB(strange{})}
	var err error
	theirs["sqlite"], err = sql.Open("sqlite", filepath.Join(t.TempDir(), "theirs.db"))
	must(t, err)
	for name, db := range theirs {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { _ = db.Close() })
			for range 2 {
				tx, err := db.BeginTx(t.Context(), nil)
				must(t, err)
				s.in(t).refused(tx, "the *sql.Tx has to be one of PostgreSQL")
				must(t, tx.Commit())
			}
		})
	}
	s.arrives(openPgxDefault(t, s.url))
}

// An outbox on SQLite refuses the transactions of PostgreSQL by every library.
func TestAnOutboxOnSQLiteRefusesPostgreSQL(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	broker := &inmemory.Transport{}
	broker.CreateQueues("orders")
	s.web = startWeb(t, broker, &sqlite.Transport{Path: filepath.Join(t.TempDir(), "outbox.db")})
	for name, open := range libraries() {
		tx := s.begin(open(t, s.url), nil)
		want := "the *sql.Tx has to be one of SQLite"
		if strings.HasPrefix(name, "pgx, ") {
			want = "want a *sql.Tx"
		}
		s.refused(tx.tx, want)
		must(t, tx.rollback())
	}
	if n := len(broker.Messages("orders")); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

func openPgxDefault(t testing.TB, url string) library {
	return libraries()["pgx stdlib, default"](t, url)
}

// strange is a driver of a database system that knows no dollar signs, such as MySQL, and counts
// parameters itself.
type strange struct{}

func (s strange) Connect(context.Context) (driver.Conn, error) { return s, nil }
func (strange) Driver() driver.Driver                          { return nil }
func (strange) Close() error                                   { return nil }
func (s strange) Begin() (driver.Tx, error)                    { return s, nil }
func (strange) Commit() error                                  { return nil }
func (strange) Rollback() error                                { return nil }

func (strange) Prepare(text string) (driver.Stmt, error) {
	if strings.Contains(text, "$") {
		return nil, errors.New("Error 1064 (42000): you have an error in your SQL syntax")
	}
	return strangeStatement{}, nil
}

type strangeStatement struct{}

func (strangeStatement) Close() error                               { return nil }
func (strangeStatement) NumInput() int                              { return 0 }
func (strangeStatement) Exec([]driver.Value) (driver.Result, error) { return driver.ResultNoRows, nil }

func (strangeStatement) Query([]driver.Value) (driver.Rows, error) { return nil, errors.New("no rows") }
