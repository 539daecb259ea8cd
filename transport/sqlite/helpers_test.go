package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/transport"
)

const queue = "billing"

// temp is a path for a file that does not exist yet.
func temp(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "orders.db")
}

// dial opens a Conn with the given queues, closed with the test.
func dial(t testing.TB, tr Transport, queues ...string) transport.Conn {
	t.Helper()
	conn, err := tr.Open(t.Context(), transport.Env{Endpoint: "test", Instance: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	install(t, conn, queues...)
	return conn
}

func install(t testing.TB, conn transport.Conn, queues ...string) {
	t.Helper()
	var plan transport.Plan
	for _, q := range queues {
		plan.Queues = append(plan.Queues, transport.Queue{Name: q})
	}
	if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}

func receiver(t testing.TB, conn transport.Conn, queue string) transport.Receiver {
	t.Helper()
	r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// to is a send of a message with a header.
func to(queue, id string) transport.Operation {
	return transport.Operation{Queue: queue, Message: message(id)}
}

func message(id string) *transport.Message {
	return &transport.Message{
		ID:      id,
		Headers: header.New(header.Field{Name: header.MessageID, Value: id}, header.Field{Name: "Grüße", Value: "an \"alle\"\n"}),
		Body:    []byte(`{"id":"` + id + `"}`),
	}
}

func send(t testing.TB, conn transport.Conn, ops ...transport.Operation) []transport.Receipt {
	t.Helper()
	receipts, err := conn.Dispatch(t.Context(), ops)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

// receive takes one message, within a minute.
func receive(t testing.TB, r transport.Receiver) transport.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		t.Fatal("receive:", err)
	}
	return ds[0]
}

// count is how many rows of any queue there are.
func count(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(query, err)
	}
	return n
}

// mine opens the file as the documentation tells users to.
func mine(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func execute(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(query, err)
	}
}

// given is what has a transaction already, as a session of the endpoint does.
type given struct{ tx transport.Tx }

func (g given) Tx(context.Context) (transport.HandlerTx, error) {
	return transport.NewHandlerTx(g.tx), nil
}
