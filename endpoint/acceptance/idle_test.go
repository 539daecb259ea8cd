package acceptance_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// What the server counts in ten seconds is what the endpoint has asked: the database is the test's own.
func TestAnIdleEndpointOnPostgreSQLAsksAtMostTwiceASecond(t *testing.T) {
	url := brokertest.Postgres(t)
	start(t, endpoint.Config{
		Name: "idle", Transport: &postgres.Transport{URL: url}, Install: true, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[work]("Idle.Work")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, work) error { return nil })},
	})
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	exec := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	counted := func() (n int) {
		t.Helper()
		err := c.QueryRow(t.Context(), `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec(`SELECT pg_sleep(12)`) // starting is over, and each session has counted its part: an idle one does so after 10 s
	before := counted()
	exec(`SELECT pg_sleep(10)`)
	exec(`SELECT pg_stat_force_next_flush()`)
	const own = 5 // of this test, at most
	if n := counted() - before; n > 2*10+own {
		t.Errorf("%d transactions in 10 s, want at most 20", n)
	} else if n < 5 {
		t.Errorf("%d transactions in 10 s: that is not what was to be counted", n)
	} else {
		t.Logf("%d transactions in 10 s", n)
	}
}
