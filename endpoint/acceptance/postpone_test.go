package acceptance_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// TestALockedDestinationIsNoFailure has one handler, without retries, send to a table that is
// locked: with one slot the next message is handled meanwhile, and the first one when the lock
// ends, as its first attempt.
func TestALockedDestinationIsNoFailure(t *testing.T) {
	for _, mode := range []endpoint.TransactionMode{endpoint.ReceiveOnly, endpoint.SendsAtomicWithReceive} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url := brokertest.Postgres(t)
			pool, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			var failures, attempts atomic.Int64
			handled := make(chan int, 100)
			cfg := endpoint.Config{
				Name: "work", Transport: &postgres.Transport{URL: url}, Concurrency: 1, Install: true, Transactions: mode,
				Messages:       []endpoint.Message{endpoint.Command[work]("Postpone.Work")},
				Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None, ErrorQueue: "error"},
				Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
					if s.Attempt().N > 1 {
						attempts.Add(1)
					}
					handled <- m.N
					if m.N == 1 {
						return s.Send(ctx, work{m.N}, endpoint.To("other"))
					}
					return nil
				})},
				Notify: []func(context.Context, recoverability.Notification){func(context.Context, recoverability.Notification) { failures.Add(1) }},
			}
			r := start(t, cfg)
			if _, err := pool.Exec(t.Context(), `CREATE TABLE other (LIKE work INCLUDING ALL)`); err != nil {
				t.Fatal(err)
			}
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `LOCK TABLE other IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			for n := 1; n <= 3; n++ {
				r.send(work{n}, endpoint.To("work"))
			}
			for want := 1; want <= 3; want++ {
				if got := <-handled; got != want {
					t.Fatalf("message %d was handled, want %d", got, want)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-handled:
				if got != 1 {
					t.Errorf("message %d was handled again, want 1", got)
				}
			case <-time.After(timeLimit):
				t.Fatal("the message was not delivered again when the lock ended")
			}
			r.end()
			var sent, failed int
			if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM other), (SELECT count(*) FROM error)`).Scan(&sent, &failed); err != nil {
				t.Fatal(err)
			}
			if sent != 1 || failed != 0 || failures.Load() != 0 || attempts.Load() != 0 {
				t.Errorf("%d sent, %d in the error queue, %d notifications, %d further attempts; want 1 sent and nothing else",
					sent, failed, failures.Load(), attempts.Load())
			}
		})
	}
}
