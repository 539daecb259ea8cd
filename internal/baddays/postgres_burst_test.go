package baddays_test

import (
	"context"
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

type (
	burstOrder struct{ N int }
	burstBill  struct{ N int }
)

// burst is an endpoint on PostgreSQL that sends a bill for each order, and a connection beside it.
type burst struct {
	t        testing.TB
	sql      *pgx.Conn
	endpoint *endpoint.Endpoint
	stop     context.CancelFunc
	ended    chan error

	mu      sync.Mutex
	runs    map[int]int
	handled atomic.Int64
}

func newBurst(t testing.TB) *burst {
	t.Helper()
	url := brokertest.Postgres(t)
	sql, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sql.Close(context.Background()) })
	r := &burst{t: t, sql: sql, runs: map[int]int{}}
	const name = "burst"
	r.endpoint, err = endpoint.New(endpoint.Config{
		Name: name, Transport: &postgres.Transport{URL: url}, Concurrency: 50, Install: true,
		Messages: []endpoint.Message{endpoint.Command[burstOrder]("Burst.Order"), endpoint.Command[burstBill]("Burst.Bill").To("error")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m burstOrder) error {
			r.mu.Lock()
			r.runs[m.N]++
			r.mu.Unlock()
			r.handled.Add(1)
			return s.Send(ctx, burstBill(m))
		})},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.ended = cancel, make(chan error, 1)
	go func() { r.ended <- r.endpoint.Run(ctx) }()
	t.Cleanup(r.end)
	if err := r.endpoint.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	r.exec(`ALTER TABLE burst SET (autovacuum_enabled = off)`) // the statistics are the test's
	return r
}

// end stops the endpoint, once.
func (r *burst) end() {
	if r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	if err := <-r.ended; err != nil {
		r.t.Error(err)
	}
}

func (r *burst) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.sql.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// orders puts n orders into the queue, in one transaction, with the numbers from first on.
func (r *burst) orders(first, n int, before ...string) {
	r.t.Helper()
	tx, err := r.sql.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(r.t.Context(), `INSERT INTO burst (headers, body)
SELECT '{"NServiceBus.EnclosedMessageTypes":"Burst.Order"}', convert_to('{"N":' || n || '}', 'UTF8') FROM generate_series($1::int, $2::int) AS n`, first, first+n-1)
	for _, sql := range before {
		if err == nil {
			_, err = tx.Exec(r.t.Context(), sql)
		}
	}
	if err == nil {
		err = tx.Commit(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// reach waits until n orders were handled, and returns how long that took.
func (r *burst) reach(n int) time.Duration {
	r.t.Helper()
	begin := time.Now()
	for tick := time.NewTicker(5 * time.Millisecond); r.handled.Load() < int64(n); <-tick.C {
		if time.Since(begin) > 5*time.Minute {
			r.t.Fatalf("%d of %d orders were handled in %v", r.handled.Load(), n, time.Since(begin))
		}
	}
	return time.Since(begin)
}

// vacuum waits until the queue is empty, and vacuums it.
func (r *burst) vacuum() {
	r.t.Helper()
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		var left int
		if err := r.sql.QueryRow(r.t.Context(), `SELECT count(*) FROM burst`).Scan(&left); err != nil {
			r.t.Fatal(err)
		}
		if left == 0 {
			r.exec(`VACUUM burst`)
			return
		}
	}
}

// read returns how many rows of the queue statements have read so far. A session reports that no
// later than its end.
func (r *burst) read() (rows int) {
	r.t.Helper()
	err := r.sql.QueryRow(r.t.Context(), `SELECT coalesce(idx_tup_fetch, 0) + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'burst'`).Scan(&rows)
	if err != nil {
		r.t.Fatal(err)
	}
	return rows
}

// postgresBurst is a queue that was worked off and vacuumed, and then fills within a moment: the
// statistics say that it is empty.
func postgresBurst(t *testing.T) outcome {
	first, n := size(1000, 10_000), size(10_000, 200_000)
	r := newBurst(t)
	r.orders(0, first)
	r.reach(first)
	r.vacuum()
	r.orders(first, n)
	normal := r.reach(first + 1000)
	r.reach(first + n)
	r.end()
	for order, runs := range r.runs {
		if runs != 1 {
			t.Errorf("order %d was handled %d times", order, runs)
		}
	}
	if len(r.runs) != first+n {
		t.Errorf("%d of %d orders were handled", len(r.runs), first+n)
	}
	rows := r.read()
	if most := 30 * (first + n); rows > most {
		t.Errorf("statements read %d rows of the queue for %d messages, want at most %d", rows, first+n, most)
	}
	return outcome{
		message:    fmt.Sprintf("%d handled, each once", n),
		neighbours: fmt.Sprintf("%.1f rows read for each message", float64(rows)/float64(first+n)),
		normal:     normal,
	}
}

// BenchmarkPostgresBurst compares the rate of the burst, whose statistics are those of an empty
// queue, with the rate of the same queue after ANALYZE. go test ./internal/baddays -run none -bench
// PostgresBurst -benchtime 1x
func BenchmarkPostgresBurst(b *testing.B) {
	const first, n = 10_000, 200_000
	rate := func(before ...string) (start, all float64) {
		r := newBurst(b)
		defer r.end()
		r.orders(0, first)
		r.reach(first)
		r.vacuum()
		r.orders(first, n, before...)
		started := r.reach(first + 5000)
		took := started + r.reach(first+n)
		return 5000 / started.Seconds(), n / took.Seconds()
	}
	for b.Loop() {
		start, all := rate()
		normalStart, normal := rate(`ANALYZE burst`)
		b.ReportMetric(all, "msg/s")
		b.ReportMetric(normal, "normal-msg/s")
		b.ReportMetric(all/normal, "of-normal")
		b.ReportMetric(start/normalStart, "of-normal-at-first")
		if all < normal/10 {
			b.Errorf("%.0f messages/s in the burst, %.0f/s with statistics", all, normal)
		}
	}
}
