package acceptance_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// An outage on a real database: handlers write in the message's transaction and fail, messages wait
// without one, and in the end every write is there once.
func TestRateLimitHoldsNoTransaction(t *testing.T) {
	t.Parallel()
	const messages, probes = 40, 3
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	url := brokertest.Postgres(t)
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE done (n int)"); err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	down.Store(true)
	failed, handled := make(chan int, 10000), make(chan int, messages)
	started := make(chan struct{})
	cfg := endpoint.Config{
		Name: "work", Transport: &postgres.Transport{URL: url, Lease: time.Second}, Concurrency: 4, Install: true,
		Messages: []endpoint.Message{endpoint.Command[work]("Limit.Work")}, Logger: slog.New(slog.DiscardHandler),
		Transactions: endpoint.SendsAtomicWithReceive,
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			tx, err := postgres.Tx(ctx, s)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO done VALUES ($1)", m.N); err != nil {
				return err
			}
			if down.Load() {
				failed <- m.N
				return errNo
			}
			return nil
		})},
		Notify: []func(context.Context, recoverability.Notification){func(_ context.Context, n recoverability.Notification) {
			if n.Kind == recoverability.RateLimitStarted {
				close(started)
			}
		}},
	}
	// Longer than the lease, which the message must keep while it waits.
	cfg.Recoverability.RateLimit = recoverability.RateLimit{After: 8, Delay: 1500 * time.Millisecond}
	cfg.Pipeline.Dispatch = onDispatch(func(next func() error) error {
		err := next()
		if err == nil {
			handled <- 0
		}
		return err
	})
	r := start(t, cfg)
	for n := range messages {
		r.send(work{n}, endpoint.To("work"))
	}
	receive := func(ch <-chan int, what string) {
		t.Helper()
		select {
		case <-ch:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
	<-started
	for range 8 {
		receive(failed, "the failures that begin the limit")
	}
	for range probes {
		receive(failed, "an attempt while limited")
		// A busy machine needs a while to end the attempt's transaction. A wait that held one would
		// leave no third of itself without.
		for none := 0; none < 5; none++ {
			var open int
			_, slept := pool.Exec(ctx, "SELECT pg_sleep(0.1)")
			err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'`).Scan(&open)
			if err := errors.Join(slept, err); err != nil {
				t.Fatalf("transactions are open whenever messages wait: %v", err)
			}
			if open > 0 {
				none = -1
			}
		}
	}
	down.Store(false)
	for range messages {
		receive(handled, "a message to be handled after the outage")
	}
	r.end()
	var rows, distinct int
	if err := pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT n) FROM done").Scan(&rows, &distinct); err != nil {
		t.Fatal(err)
	}
	if rows != messages || distinct != messages {
		t.Errorf("%d rows of %d messages are written, want %d once each", rows, distinct, messages)
	}
	if n := depth(ctx, t, url, "error"); n != 0 {
		t.Errorf("%d messages are in the error queue", n)
	}
}

func depth(ctx context.Context, t *testing.T, url, queue string) int64 {
	t.Helper()
	conn, err := (&postgres.Transport{URL: url}).Open(ctx, transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	stats, err := conn.(transport.Inspector).Inspect(ctx, queue)
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	return stats[0].Ready
}
