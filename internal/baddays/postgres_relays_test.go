package baddays_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// relay is the message of endpoint "work", which sends it on to To.
type relay struct {
	N  int
	To string
}

// relayed is what arrives there.
type relayed struct{ N int }

// relays is an endpoint on PostgreSQL without retries, so that each failure is in the error queue.
type relays struct {
	t       testing.TB
	url     string
	db      *pgxpool.Pool
	e       *endpoint.Endpoint
	runs    atomic.Int64
	retried atomic.Int64 // runs that were not a message's first attempt
	next    atomic.Int64 // number of the next message
}

// startRelays starts the endpoint. Its handlers take about as long as a request to a database.
func startRelays(t testing.TB, transactions endpoint.TransactionMode, queues ...string) *relays {
	t.Helper()
	r := &relays{t: t, url: brokertest.Postgres(t)}
	var err error
	if r.db, err = pgxpool.New(t.Context(), r.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	tr := &postgres.Transport{URL: r.url}
	r.install(queues...)
	r.e, err = endpoint.New(endpoint.Config{
		Name: "work", Transport: tr, Concurrency: 20, Install: true, Transactions: transactions, Logger: slog.New(slog.DiscardHandler),
		Messages:       []endpoint.Message{endpoint.Command[relay]("BadDays.Relay"), endpoint.Command[relayed]("BadDays.Relayed"), endpoint.Event[happened]("BadDays.Happened")},
		Recoverability: recoverability.Config{Immediate: recoverability.None, Delayed: recoverability.None},
		Handlers:       []endpoint.Handler{endpoint.Handle(r.handle)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.e.WaitReady(soon); err != nil {
		t.Fatal(err)
	}
	return r
}

// happened is an event.
type happened struct{ N int }

const toSubscribers = "subscribers"

func (r *relays) handle(ctx context.Context, s *endpoint.Session, m relay) error {
	r.runs.Add(1)
	if s.Attempt().N > 1 {
		r.retried.Add(1)
	}
	select {
	case <-time.After(5 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.To == toSubscribers {
		return s.Publish(ctx, happened{m.N})
	}
	return s.Send(ctx, relayed{m.N}, endpoint.To(m.To))
}

// install creates queues that no endpoint reads.
func (r *relays) install(queues ...string) {
	r.t.Helper()
	for _, q := range queues {
		e, err := endpoint.New(endpoint.Config{
			Name: q, Transport: &postgres.Transport{URL: r.url}, Logger: slog.New(slog.DiscardHandler),
			Messages: []endpoint.Message{endpoint.Command[relayed]("BadDays.Relayed")},
			Handlers: []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, relayed) error { return nil })},
		})
		if err == nil {
			err = e.Install(r.t.Context())
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *relays) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// rows is how many messages a queue holds, -1 where its table is locked or missing.
func (r *relays) rows(queue string) (n int) {
	if err := r.db.QueryRow(r.t.Context(), `SELECT count(*) FROM `+pgx.Identifier{queue}.Sanitize()).Scan(&n); err != nil {
		return -1
	}
	return n
}

// feed keeps some messages in the queue until stop is called, which returns how many were sent to
// each destination. Of each 100 messages, bad go to the destination other.
func (r *relays) feed(bad int, other string) (stop func() map[string]int) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var done sync.WaitGroup
	sent := map[string]int{}
	done.Go(func() {
		for ctx.Err() == nil {
			if r.next.Load()-r.runs.Load() > 400 {
				r.pause(time.Millisecond)
				continue
			}
			for _, to := range r.sendSome(bad, other) {
				sent[to]++
			}
		}
	})
	return func() map[string]int {
		cancel()
		done.Wait()
		return maps.Clone(sent)
	}
}

func (r *relays) sendSome(bad int, other string) (to []string) {
	var all sync.WaitGroup
	for range 20 {
		m := relay{int(r.next.Add(1)), "sink"}
		if m.N%100 < bad {
			m.To = other
		}
		to = append(to, m.To)
		all.Go(func() {
			if err := r.e.Send(r.t.Context(), m, endpoint.To("work")); err != nil {
				r.t.Errorf("send: %v", err)
			}
		})
	}
	all.Wait()
	return to
}

// rate counts the messages that arrive in sink in d, for a second.
func (r *relays) rate(d time.Duration) float64 {
	before, began := r.rows("sink"), time.Now()
	r.pause(d)
	return float64(r.rows("sink")-before) / time.Since(began).Seconds()
}

// wait waits until done reports true.
func (r *relays) wait(what string, within time.Duration, done func() bool) time.Duration {
	r.t.Helper()
	began := time.Now()
	for !done() {
		if time.Since(began) > within {
			r.t.Fatalf("%s: not within %v: %s", what, within, r.state())
		}
		r.pause(5 * time.Millisecond)
	}
	return time.Since(began)
}

// pause is the time between two looks, and that in which messages are counted.
func (r *relays) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.t.Context().Done():
	}
}

func (r *relays) state() string {
	var b strings.Builder
	for _, q := range []string{"work", "sink", "error", "work.quarantine"} {
		fmt.Fprintf(&b, "%s %d, ", q, r.rows(q))
	}
	return fmt.Sprintf("%s%d runs of %d messages", b.String(), r.runs.Load(), r.next.Load())
}
