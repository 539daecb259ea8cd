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
	"sync"
	"sync/atomic"
	"time"

	codes "modernc.org/sqlite/lib"
)

// session is the connection on which a writer executes statements. After newWriter has returned,
// the goroutine of the writer alone uses the session, and Close after its end.
type session struct {
	db      *sql.DB
	conn    *sql.Conn // nil while a replacement cannot be opened
	relaxed bool      // commits never wait for the disk
	synced  bool      // commits wait for the disk at the moment

	statements map[string]*sql.Stmt // prepared on conn, by their text

	texts  *texts          // of the statements on conn
	clean  string          // the state of conn when it was opened
	traces bool            // a function has left something on conn, or hangs
	told   map[string]bool // the functions whose traces the log has named
	log    *slog.Logger

	interrupter *interrupter // of the statements on conn
}

// prepare prepares the statements that are not prepared yet. It is called before the writer starts.
func (s *session) prepare(ctx context.Context) (err error) {
	for _, query := range []string{
		savepoint, rollbackTo, release, firstVisible, insertMessage, claimAny, sizeOfAny, claimFitting,
		deleteLeased, retryLeased, releaseLeased, renewLease, abandonLeases, cancelUnclaimed, hastenDeferred,
		recordKey, forgetKey, inboxExists, markForgetting, forgetOld,
	} {
		if _, err := s.preparing(ctx, query); err != nil {
			return err
		}
	}
	s.clean, err = s.state()
	return err
}

// prepared returns the statement of a query, which it prepares at the first call. Only the writer
// calls it.
func (s *session) prepared(query string) (*sql.Stmt, error) {
	return s.preparing(context.Background(), query)
}

func (s *session) preparing(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt := s.statements[query]; stmt != nil {
		return stmt, nil
	}
	stmt, err := s.conn.PrepareContext(ctx, query)
	if err == nil {
		s.statements[query] = stmt
	}
	return stmt, err
}

// finalize closes the statements and the connection, which an open statement would keep open.
func (s *session) finalize() error {
	if s.conn == nil {
		return nil
	}
	var errs []error
	for _, stmt := range s.statements {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, s.conn.Close())...)
}

// change executes a statement, which cannot be cancelled, and returns the number of changed rows.
func (s *session) change(query string, args ...any) (int64, error) {
	res, err := s.statements[query].ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// execute is change for a statement whose table may be missing when the writer starts.
func (s *session) execute(query string, args ...any) (int64, error) {
	if _, err := s.prepared(query); err != nil {
		return 0, err
	}
	return s.change(query, args...)
}

// sync sets whether commits wait for the disk.
func (s *session) sync(on bool) error {
	if on == s.synced {
		return nil
	}
	mode := "pragma synchronous=normal"
	if on {
		mode = "pragma synchronous=full"
	}
	_, err := s.conn.ExecContext(context.Background(), mode)
	if err == nil {
		s.synced = on
	}
	return err
}

// The writer's statements.
const (
	savepoint  = `savepoint holdfast`
	rollbackTo = `rollback to holdfast`
	release    = `release holdfast`

	firstVisible  = `select min(visible_at) from holdfast_messages where queue = ?`
	insertMessage = `
		insert into main.holdfast_messages (queue, id, headers, body, visible_at, expires_at)
		select name, ?, ?, ?, ?, ? from main.holdfast_queues where name = ?`

	claimStart = `
		update holdfast_messages
		set delivery_count = delivery_count + 1, visible_at = ?, lease_id = ?, lease_owner = ?
		where seq in (`
	claimEnd = `) returning seq, id, headers, body, delivery_count, expires_at`
	claimAny = claimStart + `
			select seq from holdfast_messages
			where queue = ? and visible_at <= ?
			order by visible_at, seq limit ?` + claimEnd
	sizes = `
		select seq, visible_at, octet_length(headers) + coalesce(octet_length(body), 0) as size
		from holdfast_messages
		where queue = ? and visible_at <= ?
		order by visible_at, seq limit ?`
	sizeOfAny = `select coalesce(sum(size), 0) from (` + sizes + `)`
	// claimFitting claims the first messages that fit into a number of bytes, but at least one.
	claimFitting = claimStart + `
			select seq from (
				select seq, size, sum(size) over (order by visible_at, seq rows unbounded preceding) as total from (` + sizes + `))
			where total <= ? or total = size` + claimEnd

	deleteLeased = `delete from holdfast_messages where seq = ? and lease_id = ?`
	retryLeased  = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null, last_error = coalesce(nullif(?, ''), last_error)
		where seq = ? and lease_id = ?`
	releaseLeased = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null, delivery_count = delivery_count - 1
		where seq = ? and lease_id = ?`
	hastenDeferred = `
		update holdfast_messages
		set visible_at = min(?, (select min(visible_at) from holdfast_messages where queue = ?))
		where seq = ? and queue = ? and lease_id is null and visible_at > ?`
	renewLease    = `update holdfast_messages set visible_at = ? where seq = ? and lease_id = ?`
	abandonLeases = `
		update holdfast_messages
		set visible_at = ?, lease_id = null, lease_owner = null
		where queue = ? and visible_at > ? and visible_at <= ? and lease_owner = ?`
	cancelUnclaimed = `delete from holdfast_messages where seq = ? and queue = ? and delivery_count = 0`
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
func (s *session) state() (state string, err error) {
	stmt, err := s.prepared(sessionState)
	if err == nil {
		err = stmt.QueryRowContext(context.Background()).Scan(&state)
	}
	return state, err
}

// runAll calls functions of OnCommit in tx until one fails, and notes what they leave on the
// connection.
func (s *session) runAll(
	ctx context.Context, tx *sql.Tx, funcs []func(ctx context.Context, tx *sql.Tx) error,
) error {
	if len(funcs) == 0 {
		return nil
	}
	var err error
	s.texts.leave.Store(false)
	for i := 0; err == nil && i < len(funcs); i++ {
		if err = call(ctx, tx, funcs[i]); err != nil {
			err = fmt.Errorf("%w: %w", errOnCommit, err)
		}
		if errors.Is(err, errHangs) {
			s.traces = true
			return err // the function may execute a statement, for which the next one would wait
		}
		if !s.texts.leave.Load() {
			continue
		}
		if now, unknown := s.state(); unknown != nil || now != s.clean {
			s.traces = true
			s.tell(difference(s.clean, now), funcs[i])
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
func (s *session) tell(left string, f func(ctx context.Context, tx *sql.Tx) error) {
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	if s.told[name] || len(s.told) >= maxTold {
		return
	}
	s.told[name] = true
	s.log.WarnContext(context.Background(), "a function of OnCommit leaves something on the connection, "+
		"which other functions would meet: another connection is opened. Undo it at the end of the function",
		slog.String("left", left), slog.String("function", name))
}

// maxTold bounds how many functions are remembered whose traces the log has named.
const maxTold = 100

// reconnectWithin bounds the wait for the lock that opening a connection needs.
const reconnectWithin = 5 * time.Second

// reconnect opens another connection in the place of one that has traces. If it fails, the next
// call tries again.
func (s *session) reconnect() error {
	s.discard()
	ctx, cancel := context.WithTimeout(context.Background(), reconnectWithin)
	defer cancel()
	conn, err := connection(ctx, s.db)
	if err != nil {
		return err
	}
	s.conn, s.synced = conn, !s.relaxed
	err = unlessBusy(ctx, func() error {
		if err := useWAL(ctx, conn); err != nil {
			return err
		}
		return s.prepare(ctx)
	})
	s.traces = err != nil
	return err
}

// discard closes the connection and does not return it to the pool.
func (s *session) discard() {
	if s.conn == nil {
		return
	}
	for _, stmt := range s.statements {
		_ = stmt.Close() // of a connection that ends
	}
	clear(s.statements)
	_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // the pool closes such a connection
	_ = s.conn.Close()                                           // closed before, by the pool
	s.conn = nil
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

// A function of OnCommit that hangs may hang in a statement that ignores the context of the
// function. The statement keeps the writer's connection, and with it the lock of the file, so it
// has to be interrupted.

// interruptEvery is the time between two interrupts: SQLite forgets an interrupt that comes before
// its statement has begun.
const interruptEvery = 10 * time.Millisecond

// interrupter interrupts the statements on the writer's connection. It is safe for concurrent use.
type interrupter struct {
	mu sync.Mutex // guards the rest, and is held while a statement is interrupted
	db uintptr    // SQLite's handle of the connection; 0 for none
}

// attach makes conn the connection whose statements are interrupted.
func (i *interrupter) attach(conn driver.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.db = handleOf(conn)
}

// detach is called before the connection is closed.
func (i *interrupter) detach() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.db = 0
}

// interrupt ends the statements that are executed at the moment with an error.
func (i *interrupter) interrupt() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.db != 0 {
		codes.Xsqlite3_interrupt(nil, i.db)
	}
}

// until interrupts statements until over is closed.
func (i *interrupter) until(over <-chan struct{}) {
	ticker := time.NewTicker(interruptEvery)
	defer ticker.Stop()
	for {
		i.interrupt()
		select {
		case <-over:
			return
		case <-ticker.C:
		}
	}
}

// handleOf returns SQLite's handle of a connection of the driver, or 0 if the connection has no
// such field. The driver has no function that interrupts a statement.
func handleOf(conn driver.Conn) uintptr {
	v := reflect.Indirect(reflect.ValueOf(conn))
	if v.Kind() != reflect.Struct {
		return 0
	}
	if db := v.FieldByName("db"); db.Kind() == reflect.Uintptr {
		return uintptr(db.Uint())
	}
	return 0
}

// rollback rolls tx back while it interrupts the statements of a function that hangs: a rollback
// waits for them. An interrupt may also end the rollback, so the caller closes the connection.
func (i *interrupter) rollback(tx *sql.Tx) {
	over := make(chan struct{})
	var interrupting sync.WaitGroup
	interrupting.Go(func() { i.until(over) })
	_ = tx.Rollback()
	close(over)
	interrupting.Wait()
}
