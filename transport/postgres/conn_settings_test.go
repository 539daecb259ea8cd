package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

// pooled is a store that behaves as behind a proxy: after each transaction its session has
// forgotten all.
func (w *world) pooled() *store {
	w.t.Helper()
	p := Transport{URL: w.url, Schema: w.schema, Pooled: true}
	s, err := p.store(w.t.Context(), transport.Env{Endpoint: w.schema})
	ok(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestAPooledConnectionKeepsNothingInItsSessions(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.openAs(Transport{Pooled: true})
	later := to("out", msg("later"))
	later.After, later.TTL = 1e9, 1e9
	send(t, c, to("in", msg("1")), to("in", msg("2")), to("in", msg("3")), later)
	r := receiver(t, c, "in")
	ds := receive(t, r, 3)
	for _, err := range r.(transport.Renewer).Renew(t.Context(), ds) {
		ok(t, err)
	}
	ok(t, completeWith(t, ds[0], to("out", msg("4"))))
	ok(t, ds[1].Release(t.Context()))
	tx, user := begun(t, ds[2])
	ok(t, w.write(user, 1))
	ok(t, w.write(user, 2))
	ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("5"))}))
	w.wantRows(1, 3, 2)

	s := w.pooled()
	ok(t, s.Notify(t.Context(), []string{"in"}))
	ok(t, tablequeue.Sweep(t.Context(), s))
	for name, pool := range map[string]*pgxpool.Pool{"leases": s.leases.Pool, "writes": s.writes.Pool, "handlers": s.handlers} {
		b := s.batch(s.renewals)
		b.Queue("SELECT 1")
		ok(t, pool.SendBatch(t.Context(), b).Close())
		var prepared int
		var seqscan, commit string
		ok(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('enable_seqscan'), current_setting('synchronous_commit')`).
			Scan(&prepared, &seqscan, &commit))
		if prepared != 0 || seqscan != "on" || commit != "on" {
			t.Errorf("%s: %d prepared statements, enable_seqscan %s, synchronous_commit %s are left in the session", name, prepared, seqscan, commit)
		}
	}
}

// A statement on a pooled session is planned with the settings of the engine.
// What the planner is told holds for the statement that it is told for.
func TestPooledStatementHasOurPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.pooled()
	b := s.batch(s.renewals)
	var seqscan, commit string
	b.Queue(`SELECT current_setting('enable_seqscan'), current_setting('synchronous_commit')`).QueryRow(func(row pgx.Row) error {
		return row.Scan(&seqscan, &commit)
	})
	ok(t, s.leases.SendBatch(context.Background(), b).Close())
	if seqscan != "off" || commit != "off" {
		t.Errorf("enable_seqscan %s, synchronous_commit %s", seqscan, commit)
	}
}

// A batch commits behind its last row: what fails there has leased nothing.
func TestAPooledClaimThatCannotBeCommittedFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	send(t, w.open(), to("in", msg("1")))
	s := w.pooled()
	claim := tablequeue.Claim{Queue: "in", Limit: 1, Lease: 1, For: time.Minute, Owner: "me"}
	rows, _, err := s.Claim(t.Context(), claim, nil)
	ok(t, err)
	w.exec(`CREATE FUNCTION %sfail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE serialization_failure; END'`)
	w.exec(`CREATE CONSTRAINT TRIGGER fail AFTER UPDATE ON %sin DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION %sfail()`)
	lost, err := s.Renew(t.Context(), "in", []tablequeue.Lease{{Seq: rows[0].Seq, ID: 1}}, time.Minute)
	if code(err) != "40001" {
		t.Errorf("renewed: lost %v, error %v", lost, err)
	}
	w.exec(`ALTER TABLE %sin DISABLE TRIGGER fail`)
	ok(t, s.Abandon(t.Context(), "in", "me", time.Minute))
	w.exec(`ALTER TABLE %sin ENABLE TRIGGER fail`)
	rows, _, err = s.Claim(t.Context(), claim, nil)
	if code(err) != "40001" || len(rows) != 0 {
		t.Errorf("claimed %d rows, error %v", len(rows), err)
	}
}

func TestListeningGoesPastTheProxy(t *testing.T) {
	t.Parallel()
	straight, pooled := brokertest.PgBouncer(t)
	p := Transport{URL: pooled, Schema: "app", Pooled: true, ListenURL: straight}
	here, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer here.Close()
	there, err := p.store(t.Context(), transport.Env{})
	ok(t, err)
	defer there.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	heard := ""
	err = here.Listen(ctx, func() { ok(t, there.Notify(ctx, []string{quote("app", "in")})) }, func(queue string) {
		heard = queue
		cancel()
	})
	if heard != "in" {
		t.Errorf("heard %q (%v)", heard, err)
	}
	p.ListenURL = "postgres://user:secret@host:port/"
	if _, err := p.store(t.Context(), transport.Env{}); !errors.Is(err, errURL) {
		t.Errorf("error %v", err)
	}
}
