package baddays_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/postgres"
	"github.com/holdfast-go/holdfast/transport/rabbitmq"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

var errBadDay = errors.New("bad day")

// order is the message of these days.
type order struct{ N int }

// brokers are the transports that a day of every transport runs on: SQLite, and at full size
// PostgreSQL and RabbitMQ too.
func brokers(t *testing.T) map[string]transport.Transport {
	t.Helper()
	on := map[string]transport.Transport{"sqlite": &sqlite.Transport{Path: filepath.Join(t.TempDir(), "queues.db"), Relaxed: true}}
	if faults() {
		on["postgres"] = &postgres.Transport{URL: brokertest.Postgres(t)}
		on["rabbitmq"] = &rabbitmq.Transport{URL: brokertest.RabbitMQ(t)}
	}
	return on
}

// onEach runs f on each of the brokers and returns the longest time that it returned.
func onEach(t *testing.T, f func(d *orderDay) time.Duration) (normal time.Duration) {
	for name, broker := range brokers(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			d := &orderDay{t: t, ctx: ctx, broker: broker, attempts: map[int]int{}, handled: map[int]int{}}
			d.queue, d.errors = brokertest.Name(t, "orders"), brokertest.Name(t, "error")
			normal = max(normal, f(d))
		})
	}
	return normal
}

// orderDay is an endpoint that handles orders on one broker.
type orderDay struct {
	t             *testing.T
	ctx           context.Context //nolint:containedctx // of the test
	broker        transport.Transport
	queue, errors string
	endpoint      *endpoint.Endpoint

	mu                sync.Mutex // guards the rest
	attempts, handled map[int]int
}

// run runs an endpoint until the test ends; change changes its configuration.
func (d *orderDay) run(handle func(n int) error, change func(*endpoint.Config)) {
	d.t.Helper()
	cfg := endpoint.Config{
		Name: d.queue, Transport: d.broker, Install: true, Concurrency: 4, Logger: slog.New(slog.DiscardHandler),
		Messages: []endpoint.Message{endpoint.Command[order]("BadDay.Order")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(_ context.Context, _ *endpoint.Session, m order) error {
			d.count(d.attempts, m.N)
			if err := handle(m.N); err != nil {
				return err
			}
			d.count(d.handled, m.N)
			return nil
		})},
	}
	cfg.Recoverability.ErrorQueue = d.errors
	change(&cfg)
	e, err := endpoint.New(cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.endpoint = e
	ctx, stop := context.WithCancel(context.WithoutCancel(d.ctx))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	d.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			d.t.Errorf("the endpoint ended with %v", err)
		}
	})
	if err := e.WaitReady(d.ctx); err != nil {
		d.t.Fatal(err)
	}
}

func (d *orderDay) count(in map[int]int, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in[n]++
}

// send sends the orders from first on, one for each of n.
func (d *orderDay) send(first, n int, to string) {
	d.t.Helper()
	for i := range n {
		if err := d.endpoint.Send(d.ctx, order{first + i}, endpoint.To(to)); err != nil {
			d.t.Fatal(err)
		}
	}
}

// total returns how often orders were attempted and handled, and how many were handled.
func (d *orderDay) total() (attempts, handled, orders int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.attempts {
		attempts += n
	}
	for _, n := range d.handled {
		handled += n
	}
	return attempts, handled, len(d.handled)
}

// failed returns how many messages are ready in the error queue.
func (d *orderDay) failed() int {
	d.t.Helper()
	conn, err := d.broker.Open(d.ctx, transport.Env{})
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	stats, err := conn.(transport.Inspector).Inspect(d.ctx, d.errors)
	if err != nil {
		d.t.Fatal(err)
	}
	return int(stats[0].Ready)
}

// await waits until it is so.
func (d *orderDay) await(what string, is func() bool) {
	d.t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-d.ctx.Done():
			attempts, handled, orders := d.total()
			d.t.Fatalf("waited in vain for %s: %d attempts, %d orders handled %d times, %d in the error queue", what, attempts, orders, handled, d.failed())
		}
	}
}
