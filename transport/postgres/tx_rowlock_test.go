package postgres

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/transport"
)

// levels are the ways in which a handler's transaction comes to keep a snapshot, each with the URL
// and what the handler does first.
func levels(t testing.TB) map[string]struct {
	p     Transport
	first string
} {
	t.Helper()
	u, err := url.Parse(testURL())
	ok(t, err)
	query := u.Query()
	query.Set("default_transaction_isolation", "serializable")
	u.RawQuery = query.Encode()
	return map[string]struct {
		p     Transport
		first string
	}{
		"set to serializable":    {Transport{}, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`},
		"set to repeatable read": {Transport{}, "set  transaction READ WRITE,\nisolation level Repeatable  Read"},
		"serializable by itself": {Transport{URL: u.String()}, ""},
		"behind a proxy":         {Transport{Pooled: true}, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`},
	}
}

// A handler above READ COMMITTED may take longer than its lease: no other receiver gets the
// message, and renewals are no conflict.
func TestAHandlerThatKeepsASnapshotKeepsItsMessage(t *testing.T) {
	t.Parallel()
	for name, level := range levels(t) {
		t.Run(name, func(t *testing.T) {
			w := newBiz(t)
			c := w.openAs(level.p)
			send(t, c, to("in", msg("1")), to("in", msg("2")))
			r := receiver(t, c, "in")
			ds := receive(t, r, 2)
			tx, user := begun(t, ds[0])
			if level.first != "" {
				_, err := user.Exec(t.Context(), level.first)
				ok(t, err)
			}
			ok(t, w.write(user, 1))
			for _, err := range r.(transport.Renewer).Renew(t.Context(), ds) {
				ok(t, err)
			}
			w.exec(`UPDATE %sin SET visible_at = now() - interval '1 s' WHERE ctid IN (SELECT ctid FROM %sin FOR UPDATE SKIP LOCKED)`)
			again := receive(t, receiver(t, w.open(), "in"), 1)[0]
			if again.Message().ID != ds[1].Message().ID {
				t.Error("a locked row was delivered")
			}
			nothing(t, receiver(t, w.open(), "in"))
			ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("3"))}))
			w.wantRows(1, 1, 1)
		})
	}
}

func TestASnapshotThatComesTooLateIsALostLease(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
	_, err := user.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)
	ok(t, err)
	w.exec(`UPDATE %sin SET lease_id = -1`)
	isErr(t, w.write(user, 1), transport.ErrLeaseLost)
	isErr(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("2"))}), transport.ErrLeaseLost)
	w.wantRows(1, 0, 0)
}

// When a transaction that had locked its row is over without a completion, the lease is renewed as
// before.
func TestALeaseIsRenewedAgainAfterARollback(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.openAs(Transport{Lease: time.Minute})
	send(t, c, to("in", msg("1")))
	r := receiver(t, c, "in")
	ds := receive(t, r, 1)
	tx, user := begun(t, ds[0])
	_, err := user.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)
	ok(t, err)
	ok(t, w.write(user, 1))
	ok(t, tx.Rollback(t.Context()))
	w.exec(`UPDATE %sin SET visible_at = now() + interval '1 s'`)
	ok(t, r.(transport.Renewer).Renew(t.Context(), ds)[0])
	if left := w.secondsVisible(ds[0]); left < 50 {
		t.Errorf("%v s are left", left)
	}
	ok(t, ds[0].Complete(t.Context()))
}

func TestCloseDoesNotWaitForLockedRows(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.openAs(Transport{Lease: 24 * time.Hour})
	send(t, c, to("in", msg("1")), to("in", msg("2")))
	ds := receive(t, receiver(t, c, "in"), 2)
	_, user := begun(t, ds[0])
	_, err := user.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`)
	ok(t, err)
	ok(t, w.write(user, 1))
	began := time.Now()
	ok(t, c.Close())
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
	if got := receive(t, receiver(t, w.open(), "in"), 1)[0]; got.Message().ID != "2" {
		t.Errorf("received %q", got.Message().ID)
	}
	w.wantRows(2, 0, 0)
}

// The engine works at READ COMMITTED, whatever the default of the session is.
func TestReadCommittedWhateverTheDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := levels(t)["serializable by itself"].p
	p.Schema = w.schema
	s, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer s.Close()
	for pool, want := range map[*pgxpool.Pool]string{s.leases.Pool: "read committed", s.writes.Pool: "read committed", s.handlers: "serializable"} {
		var level string
		ok(t, pool.QueryRow(t.Context(), `SELECT current_setting('transaction_isolation')`).Scan(&level))
		if level != want {
			t.Errorf("level %q, want %q", level, want)
		}
	}
}

func TestLevelsOfIsolationAreRead(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]struct{ snapshot, sets bool }{
		"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE":                              {true, true},
		" set transaction read only, isolation\n level repeatable read deferrable":  {true, true},
		"SET TRANSACTION ISOLATION LEVEL READ COMMITTED":                            {false, true},
		"SET TRANSACTION READ ONLY":                                                 {false, false},
		"INSERT INTO notes VALUES ('set transaction isolation level serializable')": {false, false},
		"": {false, false},
	} {
		if snapshot, sets := isolation(sql); snapshot != want.snapshot || sets != want.sets {
			t.Errorf("%q: %v, %v, want %v", sql, snapshot, sets, want)
		}
	}
}

// The first statement of a handler decides whether the row is locked. At a default above it, a
// handler may still choose READ COMMITTED, and a read is locked for as well as a write.
func TestFirstStatementDecidesTheLock(t *testing.T) {
	t.Parallel()
	p := levels(t)["serializable by itself"].p
	for first, locked := range map[string]bool{"SET TRANSACTION ISOLATION LEVEL READ COMMITTED": false, "SELECT 1": true} {
		w := newBiz(t)
		c := w.openAs(p)
		send(t, c, to("in", msg("1")))
		tx, user := begun(t, receive(t, receiver(t, c, "in"), 1)[0])
		if locked {
			var one int
			ok(t, user.QueryRow(t.Context(), first).Scan(&one))
		} else {
			_, err := user.Exec(t.Context(), first)
			ok(t, err)
			ok(t, w.write(user, 1))
		}
		err := w.sql.QueryRow(t.Context(), `SELECT seq FROM `+w.schema+`.in FOR UPDATE SKIP LOCKED`).Scan(new(int64))
		if got := errors.Is(err, pgx.ErrNoRows); got != locked {
			t.Errorf("%s: locked %v, want %v (%v)", first, got, locked, err)
		}
		ok(t, tx.Rollback(context.Background()))
	}
}
