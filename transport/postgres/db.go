package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// db is the database of a store: its tables, and the connections. The parts of the store share it.
type db struct {
	*schema
	*connections
	address  address
	log      *slog.Logger
	handlers *pgxpool.Pool // for transactions of handlers
	standby  standby       // what their sessions say about the server
}

// pool is connections for one purpose.
type pool struct {
	*pgxpool.Pool
	// first is the statement that begins a batch if sessions do not have the settings; else "".
	first string
}

// batch returns a batch for statements of the engine on p.
func (d *db) batch(p pool) *pgx.Batch {
	var b pgx.Batch
	if p.first != "" {
		b.Queue(p.first)
	}
	return &b
}

// args returns parameters that the connections can encode.
func (d *db) args(args []any) []any {
	if d.pooled {
		return plain(args)
	}
	return args
}

// execute executes a durable statement, in a batch with its settings where that is needed.
func (d *db) execute(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := d.query(ctx, d.writes, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// query executes a statement on a connection of p, in a batch with its settings where that is
// needed.
func (d *db) query(ctx context.Context, p pool, sql string, args ...any) (pgx.Rows, error) {
	if !d.pooled {
		return p.Query(ctx, sql, args...)
	}
	b := d.batch(p)
	b.Queue(sql, plain(args)...)
	results := p.SendBatch(ctx, b)
	_, err := results.Exec()
	var rows pgx.Rows
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return &batchRows{Rows: rows, results: results}, nil
}

// write sends a batch for s.writes. With an error it returns the index of the statement that
// failed, or a larger one.
func (d *db) write(ctx context.Context, b *pgx.Batch) (failed int, err error) {
	conn, err := d.writes.Acquire(ctx)
	if err != nil {
		return unsent, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	defer conn.Release()
	if conn.Conn().IsClosed() {
		return unsent, errNoConnection
	}
	results := conn.SendBatch(ctx, b)
	failed, err = firstFailed(b, results)
	return failed, d.sent(cmp.Or(err, results.Close()))
}

// unsent is the index of the failed statement of a batch that was not sent.
const unsent = math.MaxInt

// firstFailed reads the results of b until a statement fails, and returns the index of the
// statement.
func firstFailed(b *pgx.Batch, results pgx.BatchResults) (int, error) {
	for i, q := range b.QueuedQueries {
		if q.Fn != nil {
			if err := q.Fn(results); err != nil {
				return i, err
			}
		} else if _, err := results.Exec(); err != nil {
			return i, err
		}
	}
	return unsent, nil
}

// ofTables executes a query about the table of each of queues, without adding to the tables that
// are remembered.
func (d *db) ofTables(ctx context.Context, sql string, queues []string) ([]bool, error) {
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = quote(d.split(q))
	}
	rows, _ := d.writes.Query(ctx, sql, names) // an error is that of rows too
	answers, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	if err == nil && len(answers) != len(queues) {
		err = fmt.Errorf("%d answers for %d tables", len(answers), len(queues))
	}
	return answers, err
}

// Now implements [tablequeue.Timed].
func (d *db) Now(ctx context.Context) (time.Time, error) {
	var micros int64 // which no setting of a session formats
	err := d.writes.QueryRow(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&micros)
	return time.UnixMicro(micros), d.failed(err, "read the clock")
}

// A proxy that pools transactions may send the next statement to another session. Each batch then
// sets the engine's planner options for itself, and statements are not prepared.

// options are settings of a session, each with its name and its value.
type options [][2]string

// planner are the settings that keep the planner from reading whole tables, whatever the
// statistics: a queue that was empty when its plan was made may have a million rows a moment later.
// The statements themselves decide on the index and on the order of joins (byKey).
var planner = options{
	{"plan_cache_mode", "force_generic_plan"},
	{"enable_seqscan", "off"},
	{"enable_bitmapscan", "off"},
	{"enable_mergejoin", "off"},
	{"jit", "off"},
}

// The settings for each purpose.
var (
	// lazily is for statements whose commit does not wait for the disk. When a crash of the server
	// undoes a claim, its rows are delivered again, and settling the lost deliveries fails.
	lazily = planner.with("synchronous_commit", "off")
	// claiming has a bound on waiting for table locks. Claims skip locked rows.
	claiming = lazily.with("lock_timeout", claimLockWait)
	// renewing has a short one: a row that another session has locked must not keep the leases of
	// others from being renewed.
	renewing = lazily.with("lock_timeout", dialect.LockWait)
	// writing bounds the wait for locks: a batch has messages of many senders for many tables, of
	// which one may be locked.
	writing = planner.with("lock_timeout", dialect.LockWait)
)

func (o options) with(name, value string) options {
	return append(slices.Clip(o), [2]string{name, value})
}

// textual are the settings of a role that change the text of values. Connections through a proxy
// read values as text.
var textual = options{{"bytea_output", "hex"}, {"datestyle", "ISO"}}

// statement returns the statement that makes the settings for the rest of a batch.
func (o options) statement() string {
	var calls []string
	for _, setting := range slices.Concat(o, textual) {
		calls = append(calls, fmt.Sprintf("set_config('%s', '%s', true)", setting[0], setting[1]))
	}
	return "SELECT " + strings.Join(calls, ", ")
}

const (
	undefinedTable   = "42P01"
	readOnly         = "25006"
	lockNotAvailable = "55P03"
	diskFull         = "53100"
	invalidText      = "22P02"
	outOfMemory      = "53200"
	dataCorrupted    = "XX001"
	indexCorrupted   = "XX002"
)

// ofContent are of a row that the server refuses: a text that is too long, not valid in the
// encoding, or without a place in it; a row over a limit of the server.
var ofContent = []string{"22001", "22021", "22P05", "54000"}

// errNoConnection means that the server cannot be reached, or that all connections wait for it.
var errNoConnection = errors.New("no connection")

// errAnswerLost means that a connection broke after statements were sent on it.
var errAnswerLost = errors.New("the connection broke before the answer")

// sent returns the error of a batch that was sent on an open connection. In the mode for proxies
// pgx reports a connection that broke before the answer as a closed one, on which nothing would
// have been sent (MultiResultReader.NextResult of pgx 5.12 drops the first error).
func (d *db) sent(err error) error {
	if d.pooled && errors.Is(err, pgconn.ErrConnClosed) {
		return fmt.Errorf("%w: %w", errAnswerLost, err)
	}
	return err
}

// failed is failure on one of the engine's connections. Where the server has become a standby, or
// has ended some connections and so probably all, it ends all: those in use when they are released.
func (d *db) failed(err error, doing string, args ...any) error {
	switch code(err) {
	case readOnly, "57P01", "57P02", "57P05": // shutdown, crash of another process, idle for too long
		for _, p := range []*pgxpool.Pool{d.leases.Pool, d.renewals.Pool, d.writes.Pool, d.handlers} {
			p.Reset()
		}
	}
	return failure(err, doing, args...)
}

// failure adds the operation to err, and [transport.ErrNoQueue] where a table is missing, or
// [transport.ErrDenied] where a right is. It returns nil for nil.
func failure(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	switch code := code(err); {
	case errors.Is(err, errWrites):
	case code == undefinedTable && !errors.Is(err, tablequeue.ErrNotInstalled):
		err = fmt.Errorf("%w: %w", transport.ErrNoQueue, err)
	case code == invalidText && strings.Contains(err.Error(), skipped):
		err = fmt.Errorf("%w (the log and \"holdfast endpoint verify\" name them): have triggers raise an exception or return the row; "+
			"for a table in partitions use declarative partitioning", err)
	case code == insufficientPrivilege:
		err = fmt.Errorf("%w: %w", transport.ErrDenied, err)
	case slices.Contains(ofContent, code):
		err = fmt.Errorf("%w: %w", transport.ErrContent, err)
	}
	return fmt.Errorf("postgres: %s: %w", fmt.Sprintf(doing, args...), err)
}

// code returns the SQLSTATE of the server's answer, or "" without one. The error may be one of any
// driver.
func code(err error) string {
	if answer, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return answer.SQLState()
	}
	if answer, ok := errors.AsType[interface {
		error
		Field(name byte) string
	}](err); ok { // of github.com/uptrace/bun/driver/pgdriver
		return answer.Field('C')
	}
	return ""
}

// Classify returns the class of err, for [tablequeue.Store]. A server that answers with an error
// has rolled back, even if the answer ended the connection.
func (d *db) Classify(err error) tablequeue.Class {
	answer, answered := errors.AsType[*pgconn.PgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case errors.Is(err, errEndedByUser):
		return tablequeue.Failed
	case errors.Is(err, errNotBegun), errors.Is(err, errNoConnection):
		return tablequeue.Unavailable
	case errors.Is(err, errAnswerLost):
		return tablequeue.Unknown
	case errors.Is(err, dialect.ErrDetected), errors.Is(err, transport.ErrConflict):
		return tablequeue.Conflict
	case errors.Is(err, dialect.ErrDelay):
		return tablequeue.Refused
	case connecting:
		return tablequeue.Unavailable
	case answered && d.pooled && proxyLostServer(answer):
		return tablequeue.Unknown
	case answered:
		class := classOf(answer)
		if class == tablequeue.Refused && errors.Is(err, errWrites) {
			return tablequeue.Failed // the sent messages are not the cause
		}
		return class
	case pgconn.SafeToRetry(err):
		return tablequeue.Unavailable
	case !strings.HasPrefix(err.Error(), "postgres: "): // not of this package
		return tablequeue.Failed
	}
	return tablequeue.Unknown
}

// Outage implements [tablequeue.Outages]. A handler may have made its own transaction read-only.
// The sessions say whether the server was a standby a short while ago, and otherwise the server is
// asked: a server that cannot answer is in an outage too.
func (d *db) Outage(ctx context.Context, err error) bool {
	switch code(err) {
	case diskFull:
		return true
	case readOnly:
		refuses := d.standby.recently()
		if !refuses {
			asked := d.writes.QueryRow(ctx, `SELECT current_setting('transaction_read_only')::bool`).Scan(&refuses)
			refuses = refuses || asked != nil
		}
		if refuses {
			_ = d.failed(err, "write") // gives up the connections to a server that has become a standby
		}
		return refuses
	}
	return false
}

// standby is when a session last said that its server takes no writes. The zero value has seen no
// such session. A failure of a statement is examined after the statement, when a standby may have
// become a primary.
type standby struct{ seen atomic.Int64 } // Unix time in nanoseconds

// standbyMemory is longer than a failed attempt takes to be examined.
const standbyMemory = time.Minute

// look notes what a session says. PostgreSQL reports these settings from version 14 ("Message Flow:
// Asynchronous Operations"); pgbouncer reports neither.
func (s *standby) look(c *pgx.Conn) {
	session := c.PgConn()
	if session.ParameterStatus("default_transaction_read_only") == "on" || session.ParameterStatus("in_hot_standby") == "on" {
		s.seen.Store(time.Now().UnixNano())
	}
}

// recently reports whether a session within [standbyMemory] was read-only.
func (s *standby) recently() bool { return time.Since(time.Unix(0, s.seen.Load())) < standbyMemory }

// proxyLostServer reports whether pgbouncer itself has answered, because it lost the server that
// executed the statement. Its answers for a statement that no server received have other messages.
func proxyLostServer(answer *pgconn.PgError) bool {
	if answer.Code != "08P01" {
		return false
	}
	return !slices.ContainsFunc([]string{"query_wait_timeout", "pgbouncer cannot connect", "server login"}, func(never string) bool {
		return strings.HasPrefix(answer.Message, never)
	})
}

// outdatedPlan is the function of the server that finds a prepared statement out of date. Its code
// is also that of every feature that the server does not have, such as a rule on the table of an
// insert in a WITH clause.
const outdatedPlan = "RevalidateCachedQuery"

func classOf(answer *pgconn.PgError) tablequeue.Class {
	switch answer.Code {
	case "40001", "40P01", "26000": // serialization failure, deadlock; a prepared statement is gone
		return tablequeue.Conflict
	case "0A000":
		if answer.Routine == outdatedPlan {
			return tablequeue.Conflict
		}
		return tablequeue.Refused
	case lockNotAvailable:
		return tablequeue.Locked
	case readOnly, "08P01": // pgbouncer answers with the latter
		return tablequeue.Unavailable
	case diskFull, outOfMemory, queryCanceled, dataCorrupted, indexCorrupted:
		return tablequeue.Impeded
	}
	switch answer.Code[:min(2, len(answer.Code))] {
	case "08", "53", "57", "58", "28", "XX": // connection, resources, shutdown or cancelled, system, access, internal
		if answer.SeverityUnlocalized == "ERROR" { // of the statement, such as a trigger's: the session goes on
			return tablequeue.Impeded
		}
		return tablequeue.Unavailable
	case "25": // the handler's transaction has failed before
		return tablequeue.Failed
	}
	return tablequeue.Refused
}
