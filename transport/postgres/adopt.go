package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

const (
	deadlockDetected = "40P01"
	uniqueViolation  = "23505"
)

var errNoSession = errors.New("a table is taken over in one session, which a proxy that pools transactions does not keep: " +
	"set ListenURL to the server behind the proxy")

// A piece is a part of an adoption, which is executed outside of transactions. Repeated it changes
// nothing.
type piece struct {
	of   string
	text string
	// generates reports whether text is a query for statements, which are executed one after the
	// other.
	generates bool
}

// adopter takes tables over in a session of its own, which has the advisory lock of installers.
type adopter struct {
	store   *store
	session *pgx.Conn
}

// adopt installs plan, and takes over the tables of its queues that NServiceBus has created.
func (s *store) adopt(ctx context.Context, plan transport.Plan) error {
	if s.listener == nil {
		return errNoSession
	}
	session, err := s.listener.connect(ctx, func(_ *pgconn.PgConn, n *pgconn.Notice) { s.noticed(ctx, n) })
	if err != nil {
		return err
	}
	defer closeSoon(session)
	a := &adopter{store: s, session: session}
	if err := a.begin(ctx); err != nil {
		return err
	}
	if err := a.all(ctx, s.refusals(plan)); err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, session, func(tx pgx.Tx) error { return s.installIn(ctx, tx, plan) }); err != nil {
		return err
	}
	if err := a.change(ctx, plan); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		s.table(q.Name).foreign.Store(false)
	}
	return nil
}

// change changes the tables: again where that was a deadlock, as with an installer of an earlier
// version, or where rows with equal ids were inserted meanwhile.
func (a *adopter) change(ctx context.Context, plan transport.Plan) (err error) {
	for range 5 {
		err = a.all(ctx, a.store.adoption(plan))
		if c := code(err); c != deadlockDetected && c != uniqueViolation {
			break
		}
	}
	return err
}

// noticed logs the progress that the server reports.
func (s *store) noticed(ctx context.Context, n *pgconn.Notice) {
	level := slog.LevelInfo
	if n.Severity == "WARNING" {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, n.Message) //nolint:sloglint // the texts are those of the statements
}

// adoptSettings are the settings of a session that takes tables over. An index may take longer than
// any statement of an endpoint.
const adoptSettings = `SET standard_conforming_strings = on; SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_isolation = 'read committed'`

// begin makes the settings of the session and takes the lock of installers, without waiting in a
// transaction.
func (a *adopter) begin(ctx context.Context) error {
	if prepare := a.store.listener.config.AfterConnect; prepare != nil {
		if err := prepare(ctx, a.session); err != nil {
			return err
		}
	}
	if _, err := a.session.Exec(ctx, adoptSettings); err != nil {
		return err
	}
	pause, wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, a.store.waiting()
	for {
		var locked bool
		err := a.session.QueryRow(ctx, `SELECT pg_try_advisory_lock(`+a.store.installKey()+`)`).Scan(&locked)
		if err != nil || locked {
			return err
		}
		wait(ctx)
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("wait for another installer: %w", err)
		}
	}
}

// all executes pieces.
func (a *adopter) all(ctx context.Context, pieces []piece) error {
	for _, p := range pieces {
		if err := a.one(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.of, err)
		}
	}
	return nil
}

func (a *adopter) one(ctx context.Context, p piece) error {
	if !p.generates {
		_, err := a.session.Exec(ctx, p.text, pgx.QueryExecModeSimpleProtocol)
		return err
	}
	rows, _ := a.session.Query(ctx, p.text, pgx.QueryExecModeSimpleProtocol) // an error is that of rows too
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, text := range texts {
		if err == nil {
			err = a.slowly(ctx, p.of, text)
		}
	}
	return err
}

// slowly executes a statement that may wait for other sessions without blocking them, and logs the
// sessions that it waits for.
func (a *adopter) slowly(ctx context.Context, of, text string) error {
	watched, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	pid := a.session.PgConn().PID()
	watch.Go(func() {
		for pause := progressFirst; backoff.Sleep(watched, pause) == nil; pause = progressEvery {
			a.store.log.WarnContext(ctx, "taking a table over: a statement is still at work", slog.String("of", of),
				slog.String("waiting_for", a.store.blockers(watched, pid)), slog.String("statement", text))
		}
	})
	_, err := a.session.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	end()
	watch.Wait()
	return err
}

// blockers returns the sessions that pid waits for, empty where they cannot be seen.
func (s *store) blockers(ctx context.Context, pid uint32) string {
	rows, _ := s.writes.Query(ctx, `SELECT `+sessionText+` FROM pg_stat_activity AS a WHERE a.pid = ANY (pg_blocking_pids($1))`, int32(pid)) //nolint:gosec // a process id
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return ""
	}
	return strings.Join(found, ", ")
}

// sessionText is the expression that describes the session a of pg_stat_activity.
const sessionText = `format('process %s (%s of %s)', a.pid, coalesce(nullif(a.application_name, ''), 'a session'), coalesce(a.usename, 'another user'))`
