package baddays_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
)

type (
	refusedOrder struct{ N int }
	refusedBill  struct{ N int }
	refusedEvent struct{ N int }
)

var refusedTypes = []endpoint.Message{
	endpoint.Command[refusedOrder]("Refused.Order"), endpoint.Command[refusedBill]("Refused.Bill"), endpoint.Event[refusedEvent]("Refused.Event"),
}

// refusedRun is one endpoint that sends a bill for each order. Some orders publish instead, to an
// exchange that the endpoint's user has no right to write to.
type refusedRun struct {
	admin, user string // URLs

	mu    sync.Mutex // guards what follows
	runs  map[int]int
	ended chan struct{} // holds an element per order that was handled once, with whatever outcome
}

func newRefusedRun(t testing.TB) *refusedRun {
	t.Helper()
	node := brokertest.OwnRabbitMQ(t)
	u, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(brokertest.Name(t, "user"), "holdfast-")
	node.AddUser(name, "s3cret", "^$", `^(amq\.default|holdfast\..*)$`, ".*")
	u.User = url.UserPassword(name, "s3cret")
	return &refusedRun{admin: node.URL, user: u.String(), runs: map[int]int{}}
}

func refusedConn(t testing.TB, url string) transport.Conn {
	t.Helper()
	c, err := (&rabbitmq.Transport{URL: url}).Open(t.Context(), transport.Env{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (r *refusedRun) config(url, name string) endpoint.Config {
	cfg := endpoint.Config{
		Name: name, Transport: &rabbitmq.Transport{URL: url}, Messages: refusedTypes, Concurrency: 20,
		Routes: []endpoint.Route{endpoint.RouteTo[refusedBill](name + ".bills")}, Logger: slog.New(slog.DiscardHandler),
	}
	cfg.Recoverability.Immediate, cfg.Recoverability.Delayed = recoverability.None, recoverability.None
	cfg.Recoverability.ErrorQueue = name + ".errors"
	return cfg
}

// run handles n orders, one of 100 refused where some are, and returns how long that took.
func (r *refusedRun) run(t testing.TB, name string, n int, some bool) time.Duration {
	t.Helper()
	isRefused := func(order int) bool { return some && order%100 == 50 }
	r.ended = make(chan struct{}, 10*n)
	r.runs = map[int]int{}

	installer := r.config(r.admin, name)
	installer.Handlers = []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, refusedOrder) error { return nil })}
	e, err := endpoint.New(installer)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := refusedConn(t, r.admin)
	plan := transport.Plan{Queues: []transport.Queue{{Name: name + ".bills", Shared: true}}, Types: [][]string{{"Refused.Event"}}}
	if err := admin.(transport.Installer).Install(t.Context(), plan); err != nil {
		t.Fatal(err)
	}

	cfg := r.config(r.user, name)
	cfg.Handlers = []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m refusedOrder) error {
		r.mu.Lock()
		r.runs[m.N]++
		r.mu.Unlock()
		defer func() { r.ended <- struct{}{} }()
		<-time.After(10 * time.Millisecond) // the work
		if isRefused(m.N) {
			return s.Publish(ctx, refusedEvent(m))
		}
		return s.Send(ctx, refusedBill(m))
	})}
	if e, err = endpoint.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.fill(t, name, n)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- e.Run(ctx) }()
	for range n {
		select {
		case <-r.ended:
		case <-time.After(2 * time.Minute):
			t.Fatalf("not all of %d orders were handled", n)
		}
	}
	took := time.Since(begin)
	r.check(t, admin, name, n, isRefused)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return took
}

// fill sends n orders.
func (r *refusedRun) fill(t testing.TB, name string, n int) {
	t.Helper()
	sender, err := endpoint.New(endpoint.Config{
		Name: "sender", SendOnly: true, Transport: &rabbitmq.Transport{URL: r.admin}, Messages: refusedTypes,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sender.Run(ctx) }()
	if err := sender.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	const senders = 50
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for order := s; order < n; order += senders {
				if err := sender.Send(ctx, refusedOrder{order}, endpoint.To(name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// check counts: each order is handled once, each bill is sent once, and only what was refused is in
// the error queue.
func (r *refusedRun) check(t testing.TB, c transport.Conn, name string, n int, isRefused func(int) bool) {
	t.Helper()
	bad := 0
	for order := range n {
		if isRefused(order) {
			bad++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for queue, want := range map[string]int{name + ".bills": n - bad, name + ".errors": bad, name + ".quarantine": 0, name: 0} {
		for {
			stats, err := c.(transport.Inspector).Inspect(ctx, queue)
			if err != nil {
				t.Fatal(err)
			}
			if int(stats[0].Ready) == want {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("queue %s has %d messages, want %d", queue, stats[0].Ready, want)
			}
		}
	}
	seen := map[string]int{}
	for _, m := range drained(t, c, name+".bills", n-bad, time.Minute) {
		seen[string(m.Body)]++
	}
	if len(seen) != n-bad {
		t.Errorf("%d different bills of %d", len(seen), n-bad)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for order, runs := range r.runs {
		if runs != 1 {
			t.Errorf("order %d was handled %d times", order, runs)
		}
	}
}

// drained receives n messages, within a time.
func drained(t testing.TB, c transport.Conn, queue string, n int, within time.Duration) (messages []*transport.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	r, err := c.OpenReceiver(ctx, transport.ReceiverOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	r.Window(100)
	for len(messages) < n {
		ds, err := r.Receive(ctx, 100)
		if err != nil {
			t.Fatalf("%d of %d messages of queue %s: %v", len(messages), n, queue, err)
		}
		for _, d := range ds {
			messages = append(messages, d.Message())
			if err := d.Complete(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	return messages
}

// refusedExchange is the day on which the user of an endpoint lacks the right to write to one
// exchange.
func refusedExchange(t *testing.T) outcome {
	n := size(1000, 10_000)
	newRefusedRun(t).run(t, "shop", n, true)
	return outcome{message: "failed, error queue", neighbours: fmt.Sprintf("%d handled once, nothing doubled", n-n/100)}
}

// BenchmarkRabbitMQRefusedExchange compares the rate with 1 of 100 messages refused with an
// undisturbed run.
func BenchmarkRabbitMQRefusedExchange(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		r := newRefusedRun(b)
		undisturbed := r.run(b, "undisturbed", n, false)
		refused := r.run(b, "refused", n, true)
		b.ReportMetric(n/undisturbed.Seconds(), "undisturbed/s")
		b.ReportMetric((n-n/100)/refused.Seconds(), "others/s")
		b.ReportMetric((n-n/100)/refused.Seconds()/(n/undisturbed.Seconds()), "ratio")
	}
}
