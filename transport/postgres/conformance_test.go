package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/transporttest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	p := harness{url: brokertest.Postgres(t)}
	transporttest.Run(t, transporttest.Harness{
		Open:           p.schema(0),
		ShortLease:     p.schema(4 * time.Second),
		PutUndecodable: p.putUndecodable,
		Begin:          p.begin,
		Write:          p.write,
		Sweep:          p.sweep,
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			proxy := brokertest.NewProxy(t, host(t, p.url))
			tr := p.schema(4 * time.Second)(t).(*postgres.Transport)
			tr.URL = proxy.URL(t, p.url)
			return tr, proxy
		},
		Restart: func(t testing.TB) (transport.Transport, func()) {
			node := brokertest.OwnPostgres(t)
			return harness{node.URL}.schema(4 * time.Second)(t), func() { node.Restart(os.Kill) }
		},
	})
}

// The same through pgbouncer, where nothing may be kept in a session, with the settings that it
// needs. The statements of the engine are tested so in make test, too:
// TestTheStoreDoesWhatTheEngineExpects.
func TestChaosConformanceThroughPgBouncer(t *testing.T) {
	brokertest.Fault(t)
	straight, pooled := brokertest.PgBouncer(t)
	p := harness{url: straight}
	through := func(url string, lease time.Duration) func(testing.TB) transport.Transport {
		return func(t testing.TB) transport.Transport {
			tr := p.schema(lease)(t).(*postgres.Transport)
			tr.URL, tr.Pooled, tr.ListenURL = url, true, straight
			return tr
		}
	}
	transporttest.Run(t, transporttest.Harness{
		Open: through(pooled, 0), ShortLease: through(pooled, 4*time.Second), PutUndecodable: p.putUndecodable,
		Begin: harness{url: pooled + "&default_query_exec_mode=exec"}.begin, Write: p.write, Sweep: p.sweep,
		Break: func(t testing.TB) (transport.Transport, transporttest.Link) {
			proxy := brokertest.NewProxy(t, host(t, pooled))
			return through(proxy.URL(t, pooled), 4*time.Second)(t), proxy
		},
	})
}

// The same on a pool of the caller's, which is as small as is common.
func TestChaosConformanceOnAPoolOfFour(t *testing.T) {
	brokertest.Fault(t)
	p := harness{url: brokertest.Postgres(t)}
	pool, err := pgxpool.New(t.Context(), p.url+"&pool_max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	on := func(lease time.Duration) func(testing.TB) transport.Transport {
		return func(t testing.TB) transport.Transport {
			tr := p.schema(lease)(t).(*postgres.Transport)
			tr.URL, tr.Pool = "", pool
			return tr
		}
	}
	transporttest.Run(t, transporttest.Harness{
		Open: on(0), ShortLease: on(4 * time.Second), PutUndecodable: p.putUndecodable, Begin: p.begin, Write: p.write,
		Sweep: p.sweep,
	})
}

func host(t testing.TB, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// postgres is a database that the rules share, each with a schema of its own: subscriptions
// are read whole.
type harness struct{ url string }

var schemas atomic.Int64

func (p harness) schema(lease time.Duration) func(testing.TB) transport.Transport {
	return func(t testing.TB) transport.Transport {
		t.Helper()
		name := fmt.Sprintf("rule_%d", schemas.Add(1))
		p.exec(t, "CREATE SCHEMA "+name)
		return &postgres.Transport{URL: p.url, Schema: name, Lease: lease}
	}
}

func (p harness) putUndecodable(t testing.TB, tr transport.Transport, queue string) {
	t.Helper()
	table := pgx.Identifier{tr.(*postgres.Transport).Schema, queue}.Sanitize()
	p.exec(t, "INSERT INTO "+table+` (headers, body) VALUES ('{"not', '\xff')`)
}

func (p harness) begin(t testing.TB, _ transport.Transport) transporttest.UserTx {
	t.Helper()
	c, err := pgx.Connect(t.Context(), p.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.UserTx{Tx: tx, Commit: tx.Commit, Rollback: tx.Rollback}
}

// write writes to a table of the user's.
func (p harness) write(t testing.TB, tr transport.Transport, tx transport.HandlerTx) (committed func() bool) {
	t.Helper()
	table := pgx.Identifier{tr.(*postgres.Transport).Schema, "writes"}.Sanitize()
	p.exec(t, "CREATE TABLE IF NOT EXISTS "+table+" (id bigint)")
	id := rand.Int64()
	user, err := postgres.Tx(t.Context(), given{tx})
	if err == nil {
		_, err = user.Exec(t.Context(), "INSERT INTO "+table+" VALUES ($1)", id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() (is bool) {
		c, err := pgx.Connect(t.Context(), p.url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		if err := c.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+table+" WHERE id = $1)", id).Scan(&is); err != nil {
			t.Error(err)
		}
		return is
	}
}

// sweep opens the schema as another process does, which removes the ids that are older than
// Env.Remember of the rule a second after it has begun to use the inbox.
func (p harness) sweep(t testing.TB, tr transport.Transport, inbox string) {
	t.Helper()
	const remember = 2 * time.Second
	schema := tr.(*postgres.Transport).Schema
	p.exec(t, "UPDATE "+schema+".holdfast_handled SET forgotten_at = 'epoch' WHERE name = '"+inbox+"'")
	c, err := pgx.Connect(t.Context(), p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	var old time.Time
	if err := c.QueryRow(t.Context(), "SELECT now() - $1::interval", remember).Scan(&old); err != nil {
		t.Fatal(err)
	}
	conn, err := tr.Open(t.Context(), transport.Env{Endpoint: "sweep", Remember: remember})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.(transport.OutboxStore).FindHandled(t.Context(), inbox, []transport.HandledKey{{}}); err != nil {
		t.Fatal(err)
	}
	count := "SELECT count(*) FROM " + pgx.Identifier{schema, inbox}.Sanitize() + " WHERE at < $1"
	for left := 1; left > 0; {
		if err := backoff.Sleep(t.Context(), 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := c.QueryRow(t.Context(), count, old).Scan(&left); err != nil {
			t.Fatal(err)
		}
	}
}

// given is a session of the endpoint with a transaction.
type given struct{ tx transport.HandlerTx }

func (s given) Tx(context.Context) (transport.HandlerTx, error) { return s.tx, nil }

// exec executes a statement over the connection that the rules on one database share.
func (p harness) exec(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	kitAdmins.mu.Lock()
	defer kitAdmins.mu.Unlock()
	c := kitAdmins.conns[p.url]
	if c == nil || c.IsClosed() {
		var err error
		if c, err = pgx.Connect(ctx, p.url); err != nil {
			t.Fatal(err)
		}
		kitAdmins.conns[p.url] = c
	}
	if _, err := c.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// kitAdmins are the connections of exec, by the URL of the database. They end with the database or
// the process.
var kitAdmins = struct {
	mu    sync.Mutex
	conns map[string]*pgx.Conn
}{conns: map[string]*pgx.Conn{}}
