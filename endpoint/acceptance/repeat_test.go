package acceptance_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// conflicts is an endpoint on PostgreSQL that has no retries at all, so that whatever fails is in
// the error queue.
type conflicts struct {
	t        *testing.T
	url      string
	pool     *pgxpool.Pool
	final    func(context.Context, *endpoint.Session, recoverability.Failure) error
	calls    atomic.Int64
	attempts atomic.Int64 // above 1
	ended    chan struct{}
}

func newConflicts(t *testing.T, tables string) *conflicts {
	t.Helper()
	t.Parallel()
	c := &conflicts{t: t, url: brokertest.Postgres(t), ended: make(chan struct{}, 1000)}
	pool, err := pgxpool.New(t.Context(), c.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c.pool = pool
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	return c
}

// run handles n messages and returns when all are completed, or in the error queue.
func (c *conflicts) run(n int, handle func(ctx context.Context, tx pgx.Tx, n int) error) {
	c.t.Helper()
	cfg := endpoint.Config{
		Name: "work", Transport: &postgres.Transport{URL: c.url}, Concurrency: 4, Install: true,
		Messages:       []endpoint.Message{endpoint.Command[work]("Repeat.Work")},
		Transactions:   endpoint.SendsAtomicWithReceive,
		OnFinalFailure: c.final,
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
			c.calls.Add(1)
			if s.Attempt().N > 1 {
				c.attempts.Add(1)
			}
			tx, err := postgres.Tx(ctx, s)
			if err != nil {
				return err
			}
			return handle(ctx, tx, m.N)
		})},
	}
	cfg.Pipeline.Dispatch = onDispatch(func(next func() error) error {
		err := next()
		if err == nil {
			c.ended <- struct{}{}
		}
		return err
	})
	cfg.Notify = append(cfg.Notify, func(_ context.Context, n recoverability.Notification) {
		if n.Kind == recoverability.MovedToError {
			c.ended <- struct{}{}
		}
	})
	r := start(c.t, cfg)
	for i := range n {
		r.send(work{i}, endpoint.To("work"))
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), timeLimit)
	defer cancel()
	for range n {
		select {
		case <-c.ended:
		case <-ctx.Done():
			c.t.Fatal("not all messages are settled")
		}
	}
	r.end()
	if n := c.attempts.Load(); n > 0 && c.final == nil {
		c.t.Errorf("%d handlers were told of another attempt: repeating must not be one", n)
	}
}

func (c *conflicts) number(query string) (n int) {
	c.t.Helper()
	if err := c.pool.QueryRow(c.t.Context(), query).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *conflicts) inErrorQueue() int { return c.number("SELECT count(*) FROM error") }

func TestADeadlockedHandlerIsRepeatedAndUsesUpNoRetry(t *testing.T) {
	c := newConflicts(t, `CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL); INSERT INTO account VALUES (0, 0), (1, 0)`)
	var both sync.WaitGroup // have locked their first row
	both.Add(2)
	var arrived atomic.Int64
	c.run(2, func(ctx context.Context, tx pgx.Tx, n int) error {
		const update = `UPDATE account SET n = n + 1 WHERE id = $1`
		if _, err := tx.Exec(ctx, update, n); err != nil {
			return err
		}
		if arrived.Add(1) <= 2 {
			both.Done()
			both.Wait()
		}
		_, err := tx.Exec(ctx, update, 1-n)
		return err
	})
	if n := c.calls.Load(); n < 3 { // more where both saw the deadlock at once, or met again
		t.Errorf("handlers ran %d times, want 3 or more: both, and the deadlock's victim again", n)
	}
	if sum, failed := c.number(`SELECT sum(n) FROM account`), c.inErrorQueue(); sum != 4 || failed != 0 {
		t.Errorf("%d writes and %d messages in the error queue, want 4 and none", sum, failed)
	}
}

// Serialization failures are repeated until the handlers are serial.
func TestSerializationFailuresAreRepeated(t *testing.T) {
	const messages = 12
	c := newConflicts(t, `CREATE TABLE place (n int NOT NULL)`)
	var both sync.WaitGroup // have read before either has written
	both.Add(2)
	var arrived atomic.Int64
	c.run(messages, func(ctx context.Context, tx pgx.Tx, _ int) error {
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM place`).Scan(&n); err != nil {
			return err
		}
		if arrived.Add(1) <= 2 {
			both.Done()
			both.Wait()
		}
		_, err := tx.Exec(ctx, `INSERT INTO place VALUES ($1)`, n)
		return err
	})
	if n := c.calls.Load(); n <= messages {
		t.Errorf("handlers ran %d times: there was no conflict", n)
	}
	if failed := c.inErrorQueue(); failed != 0 {
		t.Errorf("%d messages are in the error queue", failed)
	}
	if n := c.number(`SELECT count(DISTINCT n) FROM place WHERE n < 12`); n != messages {
		t.Errorf("%d different places, want %d", n, messages)
	}
}

func TestAFinalFailureThatLosesAConflictIsCalledAgain(t *testing.T) {
	c := newConflicts(t, `CREATE TABLE given_up (n int NOT NULL)`)
	c.final = func(ctx context.Context, s *endpoint.Session, _ recoverability.Failure) error {
		tx, err := postgres.Tx(ctx, s)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO given_up VALUES (1)`); err != nil {
			return err
		}
		if c.calls.Load() == 1 {
			_, err = tx.Exec(ctx, `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`)
		}
		return err
	}
	c.run(1, func(context.Context, pgx.Tx, int) error { return errNo })
	if written, failed := c.number(`SELECT count(*) FROM given_up`), c.inErrorQueue(); written != 1 || failed != 1 {
		t.Errorf("%d writes and %d messages in the error queue, want one of each", written, failed)
	}
}

func TestAConflictThatDoesNotEndIsAFailure(t *testing.T) {
	c := newConflicts(t, `SELECT 1`)
	c.run(1, func(context.Context, pgx.Tx, int) error { return &pgconn.PgError{Code: "40001"} })
	if n := c.calls.Load(); n != 11 {
		t.Errorf("the handler ran %d times, want 1 and 10 repeats", n)
	}
	if failed := c.inErrorQueue(); failed != 1 {
		t.Errorf("%d messages in the error queue, want 1", failed)
	}
}

func TestAnErrorThatIsNoConflictIsNotRepeated(t *testing.T) {
	c := newConflicts(t, `CREATE TABLE one (n int PRIMARY KEY); INSERT INTO one VALUES (0)`)
	c.run(1, func(ctx context.Context, tx pgx.Tx, n int) error {
		_, err := tx.Exec(ctx, `INSERT INTO one VALUES ($1)`, n)
		return err
	})
	if n := c.calls.Load(); n != 1 {
		t.Errorf("the handler ran %d times, want once", n)
	}
}
