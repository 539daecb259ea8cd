package postgres

import (
	"context"
	"errors"
	"fmt"
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

// Classify implements [tablequeue.Store]. When the server answers with an error it has rolled back,
// even where that answer ended the connection.
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
