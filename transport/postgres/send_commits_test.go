package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
	"github.com/holdfast-go/holdfast/transport"
)

// recordedTx is a caller's transaction that records its statements.
type recordedTx struct {
	pgx.Tx
	texts *[]string
}

func (r recordedTx) Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	*r.texts = append(*r.texts, text)
	return r.Tx.Exec(ctx, text, args...)
}

func (r recordedTx) Query(ctx context.Context, text string, args ...any) (pgx.Rows, error) {
	*r.texts = append(*r.texts, text)
	return r.Tx.Query(ctx, text, args...)
}

// TestACallersCommitCarriesNoNotification has receivers notified of what was sent in a caller's
// transaction when it has committed, and by another transaction: commits with notifications wait
// for each other.
func TestACallersCommitCarriesNoNotification(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	s, err := (&Transport{URL: url}).store(t.Context(), transport.Env{Endpoint: "e"})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	ok(t, s.Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "committed"}, {Name: "rolled back"}}}))
	listening, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	t.Cleanup(func() { closeSoon(listening) })
	_, err = listening.Exec(t.Context(), "LISTEN "+quote(channelOf("public")))
	ok(t, err)
	users, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	t.Cleanup(func() { closeSoon(users) })
	for _, queue := range []string{"rolled back", "committed"} {
		tx, err := users.Begin(t.Context())
		ok(t, err)
		var texts []string
		ok(t, s.InsertIn(t.Context(), recordedTx{tx, &texts}, []tablequeue.Row{{Queue: queue, ID: "a", Headers: []byte("{}")}}))
		if text := strings.Join(texts, "\n"); len(texts) == 0 || strings.Contains(strings.ToLower(text), "notify") {
			t.Errorf("the caller's transaction has the statements %s", text)
		}
		if queue == "committed" {
			ok(t, tx.Commit(t.Context()))
		} else {
			ok(t, tx.Rollback(t.Context()))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n, err := listening.WaitForNotification(ctx)
	ok(t, err)
	if n.Payload != s.self+" committed" {
		t.Errorf("notified of %q, want the queue of the transaction that committed", n.Payload)
	}
}

// TestNamesThatAreNoQueuesAreForgotten has the texts of statements bounded, however many names are
// sent to.
func TestNamesThatAreNoQueuesAreForgotten(t *testing.T) {
	t.Parallel()
	s := newStore(settings{Settings: dialect.Settings{Schema: "public"}})
	const names, most = 3000, 1000
	for i := range names {
		name := fmt.Sprint(i)
		s.statement(shape{to: s.table(name).name}, func() string { return name })
		if got := s.statement(shape{to: name}, func() string { return "" }); got != name {
			t.Fatalf("statement %q, want %q", got, name)
		}
	}
	for of, n := range map[string]int{"tables": s.tables.Len(), "statements": s.writer.statements.Len()} {
		if n == 0 || n > most {
			t.Errorf("%d %s are remembered, want some, and at most %d", n, of, most)
		}
	}
}

// A batch is written again after the server has ended connections.
// TestBatchIsRepeatedAfterKills ends the pool's connections while they are idle.
func TestBatchIsRepeatedAfterKills(t *testing.T) {
	t.Parallel()
	url := brokertest.Postgres(t)
	conn, err := (&Transport{URL: url}).Open(t.Context(), transport.Env{Endpoint: "e"})
	ok(t, err)
	t.Cleanup(func() { ok(t, conn.Close()) })
	ok(t, conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: "q"}}}))
	op := []transport.Operation{{Queue: "q", Message: &transport.Message{ID: "a"}}}
	admin, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	t.Cleanup(func() { closeSoon(admin) })
	for range 5 {
		_, err = conn.Dispatch(t.Context(), op)
		ok(t, err)
		_, err = admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		ok(t, err)
		_, err = conn.Dispatch(t.Context(), op)
		ok(t, err)
	}
}
