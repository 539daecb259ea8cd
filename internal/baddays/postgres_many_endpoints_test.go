package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

type tick struct{ N int }

// crowd is many endpoints of one process on one PostgreSQL.
type crowd struct {
	t         testing.TB
	db        *pgx.Conn
	endpoints []*endpoint.Endpoint
	handled   []atomic.Int64
	again     atomic.Int64 // deliveries beyond the first of a message
	stop      func()
}

func newCrowd(t testing.TB, n int) *crowd {
	t.Helper()
	url := brokertest.Postgres(t)
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{t: t, db: db, endpoints: make([]*endpoint.Endpoint, n), handled: make([]atomic.Int64, n)}
	for i := range c.endpoints {
		c.endpoints[i], err = endpoint.New(endpoint.Config{
			Name: crowdName(i), Transport: &postgres.Transport{URL: url, Lease: 3 * time.Second}, Concurrency: 4, Install: true,
			Messages: []endpoint.Message{endpoint.Command[tick]("Crowd.Tick")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, s *endpoint.Session, _ tick) error {
				if s.Attempt().N > 1 {
					c.again.Add(1)
				}
				c.handled[i].Add(1)
				return nil
			})},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- endpoint.RunAll(ctx, c.endpoints...) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, db.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	soon, enough := context.WithTimeout(ctx, 5*time.Minute)
	defer enough()
	for _, e := range c.endpoints {
		if err := e.WaitReady(soon); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func crowdName(i int) string { return fmt.Sprintf("crowd-%03d", i) }

// connections counts those that the process has to the database, but for the test's own.
func (c *crowd) connections() (n int) {
	c.t.Helper()
	const count = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`
	if err := c.db.QueryRow(c.t.Context(), count).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// work sends n messages to each endpoint from skip on, and returns how long it took until all were
// handled.
func (c *crowd) work(n, skip int) time.Duration {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	before := make([]int64, len(c.handled))
	for i := range c.handled {
		before[i] = c.handled[i].Load()
	}
	began := time.Now()
	var senders sync.WaitGroup
	for i, e := range c.endpoints[skip:] {
		senders.Go(func() {
			for k := range n {
				if err := e.SendLocal(ctx, tick{k}); err != nil {
					c.t.Errorf("%s: send: %v", crowdName(skip+i), err)
					return
				}
			}
		})
	}
	senders.Wait()
	for i := range c.endpoints[skip:] {
		until(ctx, c.t, func() bool { return c.handled[skip+i].Load() >= before[skip+i]+int64(n) })
	}
	return time.Since(began)
}

// lock locks the queue of the first endpoint, as VACUUM FULL does, until release is called.
func (c *crowd) lock() (release func()) {
	c.t.Helper()
	tx, err := c.db.Begin(c.t.Context())
	if err == nil {
		_, err = tx.Exec(c.t.Context(), `LOCK TABLE "`+crowdName(0)+`" IN ACCESS EXCLUSIVE MODE`)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(c.t.Context()); err != nil {
			c.t.Error(err)
		}
	}
}

// until waits until is is true.
func until(ctx context.Context, t testing.TB, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("waited in vain: ", context.Cause(ctx))
		}
	}
}

func manyEndpoints(t *testing.T) outcome {
	n := size(30, 200)
	c := newCrowd(t, n)
	most := 50
	if got := c.connections(); got >= most {
		t.Errorf("%d idle endpoints have %d connections, want fewer than %d", n, got, most)
	}
	c.work(5, 0)
	if got := c.connections(); got >= most {
		t.Errorf("%d endpoints have %d connections after work, want fewer than %d", n, got, most)
	}
	release := c.lock()
	c.work(20, 1)
	release()
	began := time.Now()
	c.work(1, 0)
	normal := time.Since(began)
	if got := c.again.Load(); got != 0 {
		t.Errorf("%d messages were delivered again: leases were lost", got)
	}
	c.stop()
	return outcome{"waits until its table is free", "are handled, and lose no lease", normal}
}

// BenchmarkManyEndpoints shows what endpoints that share connections handle while the queue of one
// of them is locked.
func BenchmarkManyEndpoints(b *testing.B) {
	c := newCrowd(b, 200)
	c.work(5, 0)
	for b.Loop() {
		const n = 50
		undisturbed := c.work(n, 1)
		release := c.lock()
		disturbed := c.work(n, 1)
		release()
		b.ReportMetric(float64(199*n)/undisturbed.Seconds(), "undisturbed-msg/s")
		b.ReportMetric(float64(199*n)/disturbed.Seconds(), "one-locked-msg/s")
		b.ReportMetric(undisturbed.Seconds()/disturbed.Seconds(), "ratio")
		b.ReportMetric(float64(c.connections()), "connections")
	}
	c.stop()
}
