package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// poolOf returns a pool of a caller, which change has configured.
func poolOf(t testing.TB, url string, size int32, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	ok(t, err)
	cfg.MaxConns = size
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// onPool returns a store on a pool of the test's.
func (w *world) onPool() *store {
	w.t.Helper()
	p := Transport{Pool: poolOf(w.t, w.url, 4, nil), Schema: w.schema}
	s, err := p.store(w.t.Context(), transport.Env{Endpoint: w.schema})
	ok(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// openOn opens the transport on pool, for an endpoint of that name.
func (w *world) openOn(pool *pgxpool.Pool, lease time.Duration) transport.Conn {
	w.t.Helper()
	p := Transport{Pool: pool, Schema: w.schema, Lease: lease}
	c, err := p.Open(w.t.Context(), transport.Env{Endpoint: w.schema, Instance: "one"})
	ok(w.t, err)
	w.t.Cleanup(func() { ok(w.t, c.Close()) })
	return c
}

// Two handlers' transactions are all that a pool of four allows, in both of two endpoints together;
// a third waits. What they leave is enough to claim and to send, and leases are renewed even when
// the caller has taken the rest.
func TestAPoolOfFourLeavesConnectionsToTheEngine(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	pool := poolOf(t, testURL(), 4, nil)
	one, other := w.openOn(pool, time.Second), w.openOn(pool, time.Second)
	send(t, one, to("in", msg("1")), to("in", msg("2")), to("in", msg("3")))
	r := receiver(t, one, "in")
	first := receive(t, r, 2)
	second := receiver(t, other, "in")
	third := receive(t, second, 1)[0]
	var held []transport.Tx
	for i, d := range first {
		tx, user := begun(t, d)
		ok(t, w.write(user, i))
		held = append(held, tx)
	}
	full, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if tx, err := third.(transport.Transactor).Begin(full); err == nil {
		t.Errorf("a third transaction has begun: %v", tx)
	}
	send(t, one, to("out", msg("4")))
	send(t, other, to("out", msg("5")))
	for range 2 { // the caller takes what is left
		conn, err := pool.Acquire(t.Context())
		ok(t, err)
		defer conn.Release()
	}
	if n := pool.Stat().AcquiredConns(); n != 4 {
		t.Fatalf("%d connections are in use, want all 4", n)
	}
	before := w.leasedUntil()
	eventually(t, "leases last longer than they did", func() string {
		for _, err := range append(r.(transport.Renewer).Renew(t.Context(), first), second.(transport.Renewer).Renew(t.Context(), []transport.Delivery{third})...) {
			ok(t, err)
		}
		if now := w.leasedUntil(); now.Sub(before) < 2*time.Second {
			return fmt.Sprintf("the first ends at %v, %v later than before", now, now.Sub(before))
		}
		return ""
	})
	for _, tx := range held {
		ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("6"))}))
	}
	tx, user := begun(t, third)
	ok(t, w.write(user, 9))
	ok(t, tx.Complete(t.Context(), nil))
	w.wantRows(0, 4, 3)
}

// leasedUntil returns when the first lease ends.
func (w *world) leasedUntil() (until time.Time) {
	w.t.Helper()
	ok(w.t, w.sql.QueryRow(w.t.Context(), "SELECT min(visible_at) FROM "+quote(w.schema, "in")).Scan(&until))
	return until
}

func TestAPoolThatIsTooSmallIsRefused(t *testing.T) {
	t.Parallel()
	url := testURL()
	small, large := poolOf(t, url, 2, nil), poolOf(t, url, 3, nil)
	for want, p := range map[string]Transport{
		"MaxConns 2: want at least 3": {Pool: small},
		"set one of them":             {Pool: large, URL: url},
	} {
		_, err := p.Open(t.Context(), transport.Env{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A caller's pool works on after the endpoint has ended, and has no session that the endpoint
// changed.
func TestACallersPoolIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	pool := poolOf(t, testURL(), 4, nil)
	p := Transport{Pool: pool, Schema: w.schema}
	c, err := p.Open(t.Context(), transport.Env{Endpoint: w.schema})
	ok(t, err)
	send(t, c, to("in", msg("1")))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	begun(t, d) // is open when the endpoint ends
	ok(t, c.Close())
	for range 4 {
		conn, err := pool.Acquire(t.Context())
		ok(t, err)
		defer conn.Release()
		var seqscan, commit, timeout string
		ok(t, conn.QueryRow(t.Context(), `SELECT current_setting('enable_seqscan'), current_setting('synchronous_commit'), current_setting('lock_timeout')`).
			Scan(&seqscan, &commit, &timeout))
		if seqscan != "on" || commit != "on" || timeout != "0" {
			t.Errorf("enable_seqscan %s, synchronous_commit %s, lock_timeout %s are left in the session", seqscan, commit, timeout)
		}
	}
}

// requirePassword has the server ask role for a password.
func requirePassword(t testing.TB, admin *pgx.Conn, role string) {
	t.Helper()
	var file string
	ok(t, admin.QueryRow(t.Context(), `SHOW hba_file`).Scan(&file))
	_, err := admin.Exec(t.Context(), `COPY (SELECT 'host all `+role+` all scram-sha-256' UNION ALL SELECT 'host all all all trust') TO `+literal(file))
	ok(t, err)
	_, err = admin.Exec(t.Context(), `SELECT pg_reload_conf()`)
	ok(t, err)
}

func TestAPasswordThatChangesWhileRunning(t *testing.T) {
	t.Parallel()
	node := brokertest.OwnPostgres(t)
	admin, err := pgx.Connect(t.Context(), node.URL)
	ok(t, err)
	t.Cleanup(func() { closeSoon(admin) })
	const role = "changing"
	exec := func(statement string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), statement)
		ok(t, err)
	}
	var password atomic.Value
	change := func(to, verb string) {
		t.Helper()
		exec(verb + ` ROLE ` + role + ` LOGIN PASSWORD ` + literal(to))
		password.Store(to)
	}
	change("first", "CREATE")
	exec(`CREATE SCHEMA app AUTHORIZATION ` + role)
	requirePassword(t, admin, role)
	pool := poolOf(t, node.URL, 4, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.User = role
		cfg.BeforeConnect = func(_ context.Context, cfg *pgx.ConnConfig) error {
			cfg.Password = password.Load().(string)
			return nil
		}
	})
	c, err := (&Transport{Pool: pool, Schema: "app"}).Open(t.Context(), transport.Env{Endpoint: "e"})
	ok(t, err)
	t.Cleanup(func() { ok(t, c.Close()) })
	install(t, c, "in")
	r := receiver(t, c, "in")
	for _, next := range []string{"second", "third"} {
		eventually(t, "the endpoint listens", func() string {
			var n int
			ok(t, admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND query LIKE 'LISTEN%'`, role).Scan(&n))
			if n != 1 {
				return fmt.Sprintf("%d connections listen", n)
			}
			return ""
		})
		send(t, c, to("in", msg(next)))
		ds := receiveAtLast(t, r)
		for _, err := range r.(transport.Renewer).Renew(t.Context(), ds) {
			ok(t, err)
		}
		ok(t, ds[0].Complete(t.Context()))
		change(next, "ALTER")
		exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '` + role + `'`)
	}
	send(t, c, to("in", msg("last")))
	receiveAtLast(t, r)
}

// receiveAtLast receives over connections that the server has ended.
func receiveAtLast(t *testing.T, r transport.Receiver) []transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		ds, err := r.Receive(ctx, 1)
		if err == nil {
			return ds
		}
		if ctx.Err() != nil || strings.Contains(err.Error(), "password") {
			t.Fatal(err)
		}
		t.Log(err)
	}
}

// traced counts the statements that it sees, by a part of their text.
type traced struct{ claims, connects atomic.Int64 }

func (*traced) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (*traced) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*traced) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (tr *traced) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if strings.Contains(data.SQL, "delivery_count = delivery_count + 1") {
		tr.claims.Add(1)
	}
}

func (*traced) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (tr *traced) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	tr.connects.Add(1)
	return ctx
}

func (*traced) TraceConnectEnd(context.Context, pgx.TraceConnectEndData) {}

func TestATracerOfTheCallersSeesTheStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	var tr traced
	pool := poolOf(t, testURL(), 4, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &tr })
	c := w.openOn(pool, 0)
	send(t, c, to("in", msg("1")))
	ds := receive(t, receiver(t, c, "in"), 1)
	ok(t, ds[0].Complete(t.Context()))
	if tr.claims.Load() == 0 {
		t.Error("the tracer has seen no claim")
	}
	eventually(t, "the tracer sees the connection that listens", func() string {
		if n := tr.connects.Load(); n <= int64(pool.Stat().NewConnsCount()) {
			return fmt.Sprintf("%d connections were seen, %d are the pool's", n, pool.Stat().NewConnsCount())
		}
		return ""
	})
}

// Every exec mode of a caller's pool carries the engine's statements.
func TestACallersPoolMayHaveAnyExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newBiz(t)
			c := w.openOn(poolOf(t, testURL(), 4, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode }), 0)
			later := to("out", msg("later"))
			later.After, later.TTL = time.Hour, time.Hour
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
			ok(t, tx.Complete(t.Context(), []transport.Operation{to("out", msg("5"))}))
			w.wantRows(1, 3, 1)
		})
	}
}
