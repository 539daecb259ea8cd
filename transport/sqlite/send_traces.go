package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A connection keeps what a function of OnCommit leaves: temporary tables, attached databases,
// settings. The functions after it would meet these, and so would the engine. If the text of a
// function's statement may do so, the writer compares the state of its connection with that of a
// new one, and opens another connection if the states differ.

// settings are the settings of a connection that a transaction can change, and that outlast it.
var settings = []string{
	"query_only", "ignore_check_constraints", "recursive_triggers", "writable_schema",
	"reverse_unordered_selects", "locking_mode", "busy_timeout", "max_page_count",
	"journal_size_limit", "cache_size", "secure_delete",
}

// sessionState selects the state of a connection.
var sessionState = `select (select count(*) from temp.sqlite_schema) || ' ' ||
	(select count(*) from pragma_database_list where name not in ('main', 'temp'))` + settingsState()

func settingsState() string {
	var b strings.Builder
	for _, name := range settings {
		b.WriteString(" || ' ' || coalesce((select * from pragma_" + name + "), '')")
	}
	return b.String()
}

// state returns the state of the writer's connection, as words in the order of sessionState.
func (w *writer) state() (state string, err error) {
	stmt, err := w.prepared(sessionState)
	if err == nil {
		err = stmt.QueryRowContext(context.Background()).Scan(&state)
	}
	return state, err
}

// runAll calls functions of OnCommit in tx until one fails, and notes what they leave on the
// connection.
func (w *writer) runAll(
	ctx context.Context, tx *sql.Tx, funcs []func(ctx context.Context, tx *sql.Tx) error,
) error {
	if len(funcs) == 0 {
		return nil
	}
	var err error
	w.texts.leave.Store(false)
	for i := 0; err == nil && i < len(funcs); i++ {
		if err = call(ctx, tx, funcs[i]); err != nil {
			err = fmt.Errorf("%w: %w", errOnCommit, err)
		}
		if errors.Is(err, errHangs) {
			w.traces = true
			return err // the function may execute a statement, for which the next one would wait
		}
		if !w.texts.leave.Load() {
			continue
		}
		if now, unknown := w.state(); unknown != nil || now != w.clean {
			w.traces = true
			w.tell(difference(w.clean, now), funcs[i])
		}
	}
	return err
}

// difference returns what differs in two states.
func difference(before, after string) string {
	a, b := strings.Split(before, " "), strings.Split(after, " ")
	names := append([]string{"temporary objects", "attached databases"}, settings...)
	for i, name := range names {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return name
		}
	}
	return ""
}

// tell logs what a function has left, once for each function.
func (w *writer) tell(left string, f func(ctx context.Context, tx *sql.Tx) error) {
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	if w.told[name] || len(w.told) >= maxTold {
		return
	}
	w.told[name] = true
	w.log.WarnContext(context.Background(), "a function of OnCommit leaves something on the connection, "+
		"which other functions would meet: another connection is opened. Undo it at the end of the function",
		slog.String("left", left), slog.String("function", name))
}

// maxTold bounds how many functions are remembered whose traces the log has named.
const maxTold = 100

// reconnectWithin bounds the wait for the lock that opening a connection needs.
const reconnectWithin = 5 * time.Second

// reconnect opens another connection in the place of one that has traces. If it fails, the next
// call tries again.
func (w *writer) reconnect() error {
	w.discard()
	ctx, cancel := context.WithTimeout(context.Background(), reconnectWithin)
	defer cancel()
	conn, err := connection(ctx, w.db)
	if err != nil {
		return err
	}
	w.conn, w.synced = conn, !w.relaxed
	err = unlessBusy(ctx, func() error {
		if err := useWAL(ctx, conn); err != nil {
			return err
		}
		return w.prepare(ctx)
	})
	w.traces = err != nil
	return err
}

// discard closes the connection and does not return it to the pool.
func (w *writer) discard() {
	if w.conn == nil {
		return
	}
	for _, s := range w.statements {
		_ = s.Close() // of a connection that ends
	}
	clear(w.statements)
	_ = w.conn.Raw(func(any) error { return driver.ErrBadConn }) // the pool closes such a connection
	_ = w.conn.Close()                                           // closed before, by the pool
	w.conn = nil
}

// leavers begin the words without which no statement leaves something on its connection.
var leavers = []string{"pragma", "attach", "temp"}

// texts records whether a statement on a connection may leave something there. It is safe for
// concurrent use.
type texts struct{ leave atomic.Bool }

func (t *texts) note(query string) {
	for i := range len(query) {
		if (i == 0 || !isWord(query[i-1])) && slices.ContainsFunc(leavers, func(word string) bool {
			return len(query)-i >= len(word) && strings.EqualFold(query[i:i+len(word)], word)
		}) {
			t.leave.Store(true)
			return
		}
	}
}

func isWord(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }

// readingTexts opens connections that note the texts of their statements.
type readingTexts struct {
	driver     driver.Driver
	dsn        string
	texts      *texts
	statements *interrupter
}

func (r readingTexts) Driver() driver.Driver { return r.driver }

func (r readingTexts) Connect(context.Context) (driver.Conn, error) {
	conn, err := r.driver.Open(r.dsn)
	if err != nil {
		return nil, err
	}
	r.statements.attach(conn)
	whole := conn.(wholeConn) //nolint:errcheck // of the one driver
	return notedConn{whole, r.texts, r.statements}, nil
}

// wholeConn has the methods of the driver's connections that this package and package sql call.
type wholeConn interface {
	driver.Conn
	driver.Pinger
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
	IsReadOnly(schema string) (bool, error)
}

type notedConn struct {
	wholeConn
	texts      *texts
	statements *interrupter
}

func (c notedConn) Close() error {
	c.statements.detach()
	return c.wholeConn.Close()
}

func (c notedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	c.texts.note(query)
	return c.wholeConn.PrepareContext(ctx, query)
}

func (c notedConn) ExecContext(
	ctx context.Context, query string, args []driver.NamedValue,
) (driver.Result, error) {
	c.texts.note(query)
	return c.wholeConn.ExecContext(ctx, query, args)
}

func (c notedConn) QueryContext(
	ctx context.Context, query string, args []driver.NamedValue,
) (driver.Rows, error) {
	c.texts.note(query)
	return c.wholeConn.QueryContext(ctx, query, args)
}
