package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/transport"
)

// Statements of an installer that adopts tables.
const (
	// tryInstallLock returns a negative number while another process installs. The lock is the
	// session's.
	tryInstallLock = `DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Session', @LockTimeout = 0;
SELECT @got;`

	freeInstallLock = `EXEC sp_releaseapplock @Resource = @name, @LockOwner = 'Session';`

	canIndexOnline = `SELECT CASE WHEN ` + onlineEditions + ` THEN 1 ELSE 0 END`
)

// An installer that waits logs that at first, and then each progressEvery.
const progressEvery = 5 * time.Second

// adopter changes the tables of queues into tables of this version, on a session of its own that
// keeps other installers away. It never waits for a lock in a transaction.
type adopter struct {
	*store
	conn *sql.Conn
	said time.Time // of the last line about progress
}

// adopt adds the columns and indexes of this transport to the tables of NServiceBus among the
// plan's, except shared ones, which are used as they are. It changes tables of version 1 into those
// of this version. Messages stay.
func (s *store) adopt(ctx context.Context, plan transport.Plan) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	a := &adopter{store: s, conn: conn}
	defer a.end(ctx)
	if err := a.lock(ctx); err != nil {
		return err
	}
	for _, q := range plan.Queues {
		if err := a.queue(ctx, q); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

// end releases the lock. Where the session does not answer it is closed, and the server releases
// the lock.
func (a *adopter) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := a.conn.ExecContext(ctx, freeInstallLock, a.lockName()); err != nil {
		_ = a.conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
	_ = a.conn.Close()
}

func (a *adopter) lockName() sql.NamedArg { return sql.Named("name", installerName(a.Schema)) }

// lock waits until no other process installs.
func (a *adopter) lock(ctx context.Context) error {
	return a.again(ctx, "another installer is at work: waiting until it has ended", func() (bool, error) {
		got, err := changed(ctx, a.conn, tryInstallLock, a.lockName())
		return got < 0, err
	})
}

// again calls try until it reports false, with pauses, and logs why.
func (a *adopter) again(ctx context.Context, why string, try func() (bool, error), attrs ...slog.Attr) error {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		busy, err := try()
		if err != nil || !busy {
			return err
		}
		if time.Since(a.said) >= progressEvery {
			a.said = time.Now()
			a.log.LogAttrs(ctx, slog.LevelWarn, why, attrs...) //nolint:sloglint // the texts are constants of the callers
		}
		if err := pause.Wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", why, err)
		}
	}
}

func (a *adopter) queue(ctx context.Context, q transport.Queue) error {
	queue := q.Name
	columns, err := a.columns(ctx, queue)
	if err != nil || len(columns) == 0 {
		return err
	}
	at := a.place(queue)
	statements, traits := newAdoption(a.Schema, at), traits{}.of(columns)
	switch {
	case traits.foreign && q.Shared:
		return nil
	case traits.foreign && at.catalog != "":
		return fmt.Errorf("its table is in database %q: adopt it by an endpoint of that database", at.catalog)
	case traits.foreign:
		return a.foreign(ctx, queue, statements)
	case traits.first:
		a.log.WarnContext(ctx, "the table is rewritten, and is locked for that time", slog.String("queue", queue))
		return a.change(ctx, queue, statements.upgrade)
	}
	return nil
}

// foreign adopts a table of NServiceBus.
func (a *adopter) foreign(ctx context.Context, queue string, statements adoption) error {
	if parts, err := unfitParts(ctx, a.conn, statements.unfit); err != nil || len(parts) > 0 {
		return cmp.Or(err, refusal(parts))
	}
	if err := a.warnOffline(ctx, queue); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "adopting the table of NServiceBus", slog.String("queue", queue))
	for _, statement := range []string{statements.columns, statements.fill, statements.indexes, statements.lease} {
		if err := a.change(ctx, queue, statement); err != nil {
			return err
		}
	}
	a.tables.Set(queue, newTable(a.Schema, a.place(queue), traits{}))
	return nil
}

// change executes a statement that changes a table: again while another session keeps the table or
// a row locked.
func (a *adopter) change(ctx context.Context, queue, statement string) error {
	const why = "the table is locked by another transaction, such as that of a sender, a dump or a receiver of NServiceBus: trying again"
	return a.again(ctx, why, func() (bool, error) {
		_, err := a.conn.ExecContext(ctx, adoptionWait+statement)
		if numberOf(err) == lockTimeoutExceeded {
			return true, nil
		}
		return false, err
	}, slog.String("queue", queue))
}

// unfitParts returns the parts of a table that NServiceBus does not create.
func unfitParts(ctx context.Context, o on, query string) (found []string, err error) {
	err = each(ctx, o, func(rows *sql.Rows) error {
		var kind, name, detail string
		err := rows.Scan(&kind, &name, &detail)
		found = append(found, strings.TrimSpace(kind+" "+bracket(name)+" "+detail))
		return err
	}, query)
	return found, err
}

// refusal is the error about a table with parts that NServiceBus does not create.
func refusal(parts []string) error {
	return errors.New("its table is not as NServiceBus creates it, and is not adopted: found " + strings.Join(parts, ", "))
}

// warnOffline says that senders wait while indexes are created, where the edition cannot do that
// online.
func (a *adopter) warnOffline(ctx context.Context, queue string) error {
	online, err := changed(ctx, a.conn, canIndexOnline)
	if err == nil && online == 0 {
		a.log.WarnContext(ctx, "this edition of SQL Server cannot create indexes online: senders wait while the indexes are created",
			slog.String("queue", queue))
	}
	return err
}
