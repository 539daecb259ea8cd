package sqlserver

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// fakeServer stands in for a SQL Server: it records what it is asked and answers as the test says.
type fakeServer struct {
	mu       sync.Mutex
	asked    []asked
	answers  map[string]answer // by a part of the statement; the longest that fits
	connects error             // the error of Connect
	opened   int               // connections
	aborted  bool              // the server has ended the transaction
}

type asked struct {
	text string // of the statement, or "begin", "commit", "rollback"
	args map[string]any
	tx   bool
}

// answer has the result sets of a query.
type answer struct {
	sets [][][]driver.Value
	err  error
	then *answer // the next time
}

// rowsOf is an answer of one result set.
func rowsOf(rows ...[]driver.Value) answer { return answer{sets: [][][]driver.Value{rows}} }

// numbers is one of a single column.
func numbers(ns ...int64) answer {
	rows := [][]driver.Value{}
	for _, n := range ns {
		rows = append(rows, []driver.Value{n})
	}
	return rowsOf(rows...)
}

// column is one of a single column of text.
func column(names ...string) answer {
	rows := [][]driver.Value{}
	for _, n := range names {
		rows = append(rows, []driver.Value{n})
	}
	return rowsOf(rows...)
}

func serverError(number int32, class uint8) answer {
	return answer{err: mssql.Error{Number: number, Class: class, Message: "no"}}
}

func newFake(t *testing.T, answers map[string]answer) (*fakeServer, *store) {
	t.Helper()
	f := &fakeServer{answers: map[string]answer{databaseTime: rowsOf([]driver.Value{time.Now()})}}
	maps.Copy(f.answers, answers)
	s := newStore(connector{f}, dialect.Settings{Schema: "dbo", MaxTx: 2})
	s.database = "shop"
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, s
}

// texts are what has been asked since the last call, each statement by its first line that is not
// about locks or the clock.
func (f *fakeServer) texts() (all []string) {
	for _, a := range f.take() {
		text := strings.TrimPrefix(strings.TrimPrefix(a.text, lockWait), declareNow)
		line, _, _ := strings.Cut(text, "\n")
		all = append(all, line)
	}
	return all
}

func (f *fakeServer) take() []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.asked
	f.asked = nil
	return all
}

func (f *fakeServer) answer(text string, args []driver.NamedValue, tx bool) answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tx && f.aborted {
		return serverError(0, 0)
	}
	named := map[string]any{}
	for _, a := range args {
		named[a.Name] = a.Value
	}
	f.asked = append(f.asked, asked{text, named, tx})
	parts := []string{}
	for part := range f.answers {
		if strings.Contains(text, part) {
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return answer{}
	}
	part := slices.MaxFunc(parts, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	a := f.answers[part]
	if a.then != nil {
		f.answers[part] = *a.then
	}
	return a
}

// Connect implements driver.Connector.
func (f *fakeServer) Connect(context.Context) (driver.Conn, error) {
	if f.connects != nil {
		return nil, f.connects
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	return &fakeConn{server: f}, nil
}

func (f *fakeServer) Driver() driver.Driver { return nil }

type fakeConn struct {
	server *fakeServer
	tx     bool
}

func (c *fakeConn) CheckNamedValue(*driver.NamedValue) error { return nil }
func (c *fakeConn) Close() error                             { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)                { return nil, io.ErrUnexpectedEOF }

func (c *fakeConn) Prepare(text string) (driver.Stmt, error) {
	return nil, fmt.Errorf("prepared: %s", text)
}

func (c *fakeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	a := c.server.answer("begin", nil, false)
	c.tx = a.err == nil
	return c, a.err
}

func (c *fakeConn) Commit() error   { return c.ended("commit") }
func (c *fakeConn) Rollback() error { return c.ended("rollback") }

func (c *fakeConn) ended(how string) error {
	c.tx = false
	return c.server.answer(how, nil, false).err
}

func (c *fakeConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	a := c.server.answer(text, args, c.tx)
	return driver.RowsAffected(0), cmp.Or(ctx.Err(), a.err)
}

func (c *fakeConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	a := c.server.answer(text, args, c.tx)
	if len(a.sets) == 0 {
		a.sets = [][][]driver.Value{nil}
	}
	return &fakeRows{sets: slices.Clone(a.sets)}, cmp.Or(ctx.Err(), a.err)
}

type fakeRows struct{ sets [][][]driver.Value }

func (r *fakeRows) Close() error           { return nil }
func (r *fakeRows) HasNextResultSet() bool { return len(r.sets) > 1 }

func (r *fakeRows) NextResultSet() error {
	if len(r.sets) < 2 {
		return io.EOF
	}
	r.sets = r.sets[1:]
	return nil
}

func (r *fakeRows) Columns() []string {
	if len(r.sets[0]) == 0 {
		return []string{"c"}
	}
	return make([]string, len(r.sets[0][0]))
}

func (r *fakeRows) Next(dest []driver.Value) error {
	if len(r.sets[0]) == 0 {
		return io.EOF
	}
	copy(dest, r.sets[0][0])
	r.sets[0] = r.sets[0][1:]
	return nil
}
