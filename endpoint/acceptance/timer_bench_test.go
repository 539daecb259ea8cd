package acceptance_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

var waiting = flag.Int("waiting", 1_000_000, "timers that wait during BenchmarkTimers")

type (
	// setTimers sets timers by number, which are due after a time.
	setTimers struct {
		From, N int
		After   time.Duration
	}
	// cancelTimers cancels timers by number.
	cancelTimers struct{ From, N int }
	// timer is a timer that is due.
	timer struct {
		N   int
		Due time.Time
	}
)

// BenchmarkTimers measures named timers in the atomic mode on PostgreSQL, beside as many as
// -waiting says, which are due in a day. Each round sets 1,000 timers, of which 100 are due every
// 0.2 s, and then 10,000 that are cancelled. The benchmark reports how late timers are handled
// after they were due, the rates of setting and cancelling, and the bytes of the table and its
// indexes for each waiting timer, before and after the rounds.
func BenchmarkTimers(b *testing.B) {
	const due, cancelled, each = 1_000, 10_000, 100
	w := newTimers(b)
	w.each(*waiting, 1000, func(n, from int) any { return setTimers{from, n, 24 * time.Hour} })
	before := w.size()
	var late []time.Duration
	var setting, cancelling time.Duration
	for b.Loop() {
		w.each(due, each, func(n, from int) any {
			return setTimers{*waiting + from, n, time.Second + time.Duration(2*from)*time.Millisecond}
		})
		for range due {
			late = append(late, <-w.late)
		}
		setting += w.each(cancelled, each, func(n, from int) any { return setTimers{*waiting + from, n, time.Hour} })
		cancelling += w.each(cancelled, each, func(n, from int) any { return cancelTimers{*waiting + from, n} })
	}
	for began := time.Now(); w.rows() != *waiting; { // the next claim of the relay removes the cancelled ones
		if time.Since(began) > 10*time.Second {
			b.Fatalf("%d timers wait, want %d", w.rows(), *waiting)
		}
	}
	slices.Sort(late)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(late[0].Milliseconds()), "late-min-ms")
	b.ReportMetric(float64(late[len(late)/2].Milliseconds()), "late-p50-ms")
	b.ReportMetric(float64(late[len(late)-1].Milliseconds()), "late-max-ms")
	b.ReportMetric(float64(b.N*cancelled)/setting.Seconds(), "set/s")
	b.ReportMetric(float64(b.N*cancelled)/cancelling.Seconds(), "cancel/s")
	b.ReportMetric(before/float64(*waiting), "B/timer-before")
	b.ReportMetric(w.size()/float64(*waiting), "B/timer-after")
}

// timers is an endpoint that sets and cancels timers.
type timers struct {
	*testing.B

	e    *endpoint.Endpoint
	sql  *pgx.Conn
	done chan struct{}
	late chan time.Duration
}

func newTimers(b *testing.B) *timers {
	url := brokertest.Postgres(b)
	sql, err := pgx.Connect(b.Context(), url)
	must(b, err)
	w := &timers{B: b, sql: sql, done: make(chan struct{}, 1000), late: make(chan time.Duration, 1000)}
	w.e, err = endpoint.New(endpoint.Config{
		Name: "clock", Install: true, Transport: &postgres.Transport{URL: url}, Concurrency: 32,
		Transactions: endpoint.SendsAtomicWithReceive, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{
			endpoint.Command[setTimers]("Clock.Set"), endpoint.Command[cancelTimers]("Clock.Cancel"), endpoint.Command[timer]("Clock.Timer"),
		},
		Handlers: []endpoint.Handler{endpoint.Handle(w.set), endpoint.Handle(w.cancel), endpoint.Handle(w.isDue)},
	})
	must(b, err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.e.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() {
		stop()
		running.Wait()
		_ = sql.Close(context.Background())
	})
	must(b, w.e.WaitReady(b.Context()))
	return w
}

func nameOf(n int) endpoint.SendOption { return endpoint.TimerName(fmt.Sprint("timer-", n)) }

func (w *timers) set(ctx context.Context, s *endpoint.Session, m setTimers) error {
	at := time.Now().Add(m.After)
	for n := m.From; n < m.From+m.N; n++ {
		if err := s.SendLocal(ctx, timer{n, at}, endpoint.At(at), nameOf(n)); err != nil {
			return err
		}
	}
	w.done <- struct{}{}
	return nil
}

func (w *timers) cancel(ctx context.Context, s *endpoint.Session, m cancelTimers) error {
	for n := m.From; n < m.From+m.N; n++ {
		if err := s.CancelTimer(ctx, fmt.Sprint("timer-", n)); err != nil {
			return err
		}
	}
	w.done <- struct{}{}
	return nil
}

func (w *timers) isDue(_ context.Context, _ *endpoint.Session, m timer) error {
	w.late <- time.Since(m.Due)
	return nil
}

// each sends messages about total timers, some each, and returns the time until all are handled.
func (w *timers) each(total, some int, message func(n, from int) any) time.Duration {
	began := time.Now()
	for from := 0; from < total; from += some {
		must(w, w.e.SendLocal(w.Context(), message(min(some, total-from), from)))
	}
	for from := 0; from < total; from += some {
		select {
		case <-w.done:
		case <-time.After(5 * time.Minute):
			w.Fatalf("no message was handled in five minutes: %+v", w.e.Health())
		}
	}
	return time.Since(began)
}

// size returns the bytes of the table of timers and its indexes.
func (w *timers) size() (n float64) {
	must(w, w.sql.QueryRow(w.Context(), `SELECT pg_total_relation_size('"clock.outbox"')`).Scan(&n))
	return n
}

func (w *timers) rows() (n int) {
	must(w, w.sql.QueryRow(w.Context(), `SELECT count(*) FROM "clock.outbox"`).Scan(&n))
	return n
}
