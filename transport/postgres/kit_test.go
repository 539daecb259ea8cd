package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

// patience is the longest wait for an expected event.
const patience = 3 * time.Minute

func testURL() string {
	return cmp.Or(os.Getenv("HOLDFAST_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/test?sslmode=disable")
}

// needServer skips a test that needs PostgreSQL under -short.
func needServer(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs PostgreSQL, and -short is for machines without")
	}
}

var schemas atomic.Int64

// world is a schema of a test's own, with what it needs to look behind the scenes.
type world struct {
	t      testing.TB
	url    string // of the database
	schema string
	sql    *pgx.Conn
}

func newWorld(t testing.TB, queues ...string) *world {
	t.Helper()
	needServer(t)
	return newWorldAt(t, testURL(), queues...)
}

// newWorldAt makes a world in a database of the test's own.
func newWorldAt(t testing.TB, url string, queues ...string) *world {
	t.Helper()
	w := &world{t: t, url: patiently(url), schema: fmt.Sprintf("holdfast_test_%d_%d", os.Getpid(), schemas.Add(1))}
	sql, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("no PostgreSQL: %v (set HOLDFAST_TEST_POSTGRES)", err)
	}
	w.sql = sql
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := sql.Exec(ctx, "DROP SCHEMA IF EXISTS "+w.schema+" CASCADE"); err != nil {
			t.Error(err)
		}
		_ = sql.Close(ctx)
	})
	c := w.open()
	install(t, c, queues...)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return w
}

func install(t testing.TB, c transport.Conn, queues ...string) {
	t.Helper()
	plan := transport.Plan{}
	for _, q := range queues {
		plan.Queues = append(plan.Queues, transport.Queue{Name: q})
	}
	if err := c.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}

func (w *world) open() transport.Conn { return w.openAs(Transport{}) }

func (w *world) openAs(p Transport) transport.Conn {
	w.t.Helper()
	p.URL, p.Schema = cmp.Or(p.URL, w.url), w.schema
	c, err := p.Open(w.t.Context(), transport.Env{Endpoint: w.schema, Instance: "one"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		// A close does not wait long for a server that is slow to answer.
		if err := c.Close(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("close: %v", err)
		}
	})
	return c
}

// patiently returns a URL by which a connection waits long for a server that is slow to answer.
func patiently(url string) string {
	if strings.Contains(url, "connect_timeout") {
		return url
	}
	if strings.Contains(url, "?") {
		return url + "&connect_timeout=60"
	}
	return url + "?connect_timeout=60"
}

// store is the dialect without the engine.
func (w *world) store() *store {
	w.t.Helper()
	p := Transport{URL: w.url, Schema: w.schema}
	s, err := p.store(w.t.Context(), transport.Env{Endpoint: w.schema})
	ok(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// exec runs a statement in which %s stands for the quoted schema, with a dot.
func (w *world) exec(sql string, args ...any) int64 {
	w.t.Helper()
	tag, err := w.sql.Exec(w.t.Context(), strings.ReplaceAll(sql, "%s", w.schema+"."), args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return tag.RowsAffected()
}

// count is the number of rows of a queue.
func (w *world) count(queue string) (n int) {
	w.t.Helper()
	if err := w.sql.QueryRow(w.t.Context(), "SELECT count(*) FROM "+quote(w.schema, queue)).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func receiver(t testing.TB, c transport.Conn, queue string) transport.Receiver {
	t.Helper()
	r, err := c.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// receive waits for n deliveries.
func receive(t testing.TB, r transport.Receiver, n int) []transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []transport.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// nothing fails when a message is visible in r's queue: it looks once.
func nothing(t testing.TB, r transport.Receiver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ds, err := r.Receive(ctx, 10)
	if err == nil {
		t.Fatalf("received %d messages, want none; the first: %+v", len(ds), ds[0].Message())
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func msg(id string) *transport.Message {
	return &transport.Message{
		ID:      id,
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}, header.Field{Name: "k", Value: "v of " + id}),
		Body:    []byte("body of " + id),
	}
}

func to(queue string, m *transport.Message) transport.Operation {
	return transport.Operation{Message: m, Queue: queue}
}

func send(t testing.TB, c transport.Conn, ops ...transport.Operation) []transport.Receipt {
	t.Helper()
	receipts, err := c.Dispatch(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error = %v, want %v", err, want)
	}
}
