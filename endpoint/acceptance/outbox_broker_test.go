package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

// Endpoints on RabbitMQ with an outbox on a database.

// outboxShop is a broker with a queue of work and a queue of what is sent for it, and a database
// with the handlers' rows.
type outboxShop struct {
	t                    *testing.T
	url                  string // of the broker
	work, worked, failed string
	rows                 killStore
	conn                 transport.Conn // to the broker

	mu   sync.Mutex
	sent map[int]map[string]bool // ids of what arrived, by its number
}

// onOutboxes runs test with PostgreSQL as the outbox, and in make test-faults with SQLite too.
func onOutboxes(t *testing.T, test func(t *testing.T, shop *outboxShop)) {
	t.Helper()
	onBrokers(t, []string{"postgres"}, []string{"sqlite"}, func(t *testing.T, database string) {
		place := filepath.Join(t.TempDir(), "outbox.db")
		if database == "postgres" {
			place = brokertest.Postgres(t)
		}
		test(t, newOutboxShop(t, database, place))
	})
}

func newOutboxShop(t *testing.T, database, place string) *outboxShop {
	t.Helper()
	s := &outboxShop{
		t: t, url: brokertest.RabbitMQ(t), sent: map[int]map[string]bool{},
		work: brokertest.Name(t, "work"), worked: brokertest.Name(t, "worked"), failed: brokertest.Name(t, "error"),
	}
	var err error
	if s.rows, err = openKillStore(database, place); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.rows.Close() })
	must(t, s.rows.exec(t.Context(), `CREATE TABLE done (n int)`))
	if s.conn, err = (&rabbitmq.Transport{URL: s.url}).Open(t.Context(), transport.Env{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	plan := transport.Plan{Queues: []transport.Queue{{Name: s.work}, {Name: s.worked}, {Name: s.failed, Shared: true}}}
	must(t, s.conn.(transport.Installer).Install(t.Context(), plan))
	noting := s.config(s.worked, s.url, endpoint.Handle(func(_ context.Context, session *endpoint.Session, m worked) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sent[m.N] == nil {
			s.sent[m.N] = map[string]bool{}
		}
		s.sent[m.N][session.MessageID()] = true
		return nil
	}))
	start(t, noting)
	return s
}

// config is an endpoint without an outbox.
func (s *outboxShop) config(name, url string, handlers ...endpoint.Handler) endpoint.Config {
	return endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: url}, Install: true, Concurrency: 8,
		Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work").To(s.work), endpoint.Command[worked]("Kill.Worked").To(s.worked)},
		Handlers: handlers, Logger: slog.New(slog.DiscardHandler),
		// One failure moves a message to the error queue.
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None, ErrorQueue: s.failed},
	}
}

// working is an endpoint with an outbox, which writes a row and sends a message for each message.
func (s *outboxShop) working(url string) endpoint.Config {
	cfg := s.config(s.work, url, endpoint.Handle(func(ctx context.Context, session *endpoint.Session, m work) error {
		if err := s.rows.write(ctx, session, m.N); err != nil {
			return err
		}
		return session.Send(ctx, worked(m))
	}))
	cfg.Outbox = s.rows.transport()
	return cfg
}

// throughProxy returns the URL of the broker through a proxy.
func (s *outboxShop) throughProxy() (*brokertest.Proxy, string) {
	broker, err := url.Parse(s.url)
	must(s.t, err)
	proxy := brokertest.NewProxy(s.t, broker.Host)
	return proxy, proxy.URL(s.t, s.url)
}

// send puts messages with the numbers below n into a queue, past the endpoints.
func (s *outboxShop) send(queue string, n int) {
	s.t.Helper()
	ops := make([]transport.Operation, n)
	for i := range ops {
		m := &transport.Message{ID: fmt.Sprint("m-", i), Body: fmt.Appendf(nil, `{"N":%d}`, i)}
		m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"})
		ops[i] = transport.Operation{Message: m, Queue: queue}
	}
	if _, err := s.conn.Dispatch(s.t.Context(), ops); err != nil {
		s.t.Fatal(err)
	}
}

// arrived waits until n different messages have arrived, and checks that each has one id.
func (s *outboxShop) arrived(n int) {
	s.t.Helper()
	s.eventually("all has arrived", func() bool { return s.count() >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, ids := range s.sent {
		if len(ids) > 1 {
			s.t.Errorf("message %d has arrived under %d ids", number, len(ids))
		}
	}
	if len(s.sent) != n {
		s.t.Errorf("%d messages have arrived, want %d", len(s.sent), n)
	}
}

func (s *outboxShop) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// depth returns the number of messages in a queue.
func (s *outboxShop) depth(conn transport.Conn, queue string) int64 {
	s.t.Helper()
	stats, err := conn.(transport.Inspector).Inspect(s.t.Context(), queue)
	if err != nil {
		s.t.Fatal(err)
	}
	return stats[0].Ready + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed)
}

// openDatabase returns a connection to the database of the outbox.
func (s *outboxShop) openDatabase() transport.Conn {
	s.t.Helper()
	conn, err := s.rows.transport().Open(s.t.Context(), transport.Env{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// written checks that each number below n has one row.
func (s *outboxShop) written(n int) {
	s.t.Helper()
	rows, err := s.rows.rows(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	allOnce(s.t, "written", n, rows)
	if len(rows) != n {
		s.t.Errorf("%d rows, want %d", len(rows), n)
	}
}

// eventually returns when done reports true.
func (s *outboxShop) eventually(what string, done func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), timeLimit)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			s.t.Fatalf("it has not come to this: %s; %d messages have arrived", what, s.count())
		}
	}
}

// begin begins a transaction of the program in the database, in which it writes a row.
func (s *outboxShop) begin(n int) usersTx {
	s.t.Helper()
	ctx := s.t.Context()
	switch store := s.rows.(type) {
	case *postgresKills:
		tx, err := store.pool.Begin(ctx)
		must(s.t, err)
		_, err = tx.Exec(ctx, `INSERT INTO done (n) VALUES ($1)`, n)
		must(s.t, err)
		return usersTx{tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }}
	case *sqliteKills:
		tx, err := store.db.BeginTx(ctx, nil)
		must(s.t, err)
		_, err = tx.ExecContext(ctx, `INSERT INTO done (n) VALUES (?)`, n)
		must(s.t, err)
		return usersTx{tx, tx.Commit, tx.Rollback}
	}
	s.t.Fatal("no database")
	return usersTx{}
}

// emptied returns when the outbox of an endpoint is empty.
func (s *outboxShop) emptied(name string) {
	s.t.Helper()
	conn := s.openDatabase()
	s.eventually("the outbox is empty", func() bool { return s.depth(conn, name+".outbox") == 0 })
}
