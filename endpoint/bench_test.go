package endpoint_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/pipeline"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
)

// order is about 200 bytes of JSON.
type order struct {
	OrderID    string    `json:"orderId"`
	CustomerID string    `json:"customerId"`
	PlacedAt   time.Time `json:"placedAt"`
	Currency   string    `json:"currency"`
	Total      float64   `json:"total"`
	Notes      string    `json:"notes"`
}

type orderDone order

// BenchmarkLoop is the endpoint's own cost of a message: received, decoded, handled,
// one message encoded and sent, completed; on a broker in memory.
func BenchmarkLoop(b *testing.B) {
	for _, behaviors := range []int{0, 10} {
		b.Run(fmt.Sprintf("behaviors=%d", behaviors), func(b *testing.B) { benchmarkLoop(b, behaviors) })
	}
}

func benchmarkLoop(b *testing.B, behaviors int) {
	broker := &inmemory.Transport{}
	broker.CreateQueues("done")
	var wg sync.WaitGroup
	cfg := endpoint.Config{
		Name: "bench", Transport: broker, Install: true, Concurrency: 32,
		Messages: []endpoint.Message{endpoint.Command[order]("Bench.Order").To("bench"), endpoint.Command[orderDone]("Bench.OrderDone").To("done")},
		Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m order) error {
			defer wg.Done()
			return s.Send(ctx, orderDone(m), endpoint.ExpireAfter(time.Nanosecond))
		})},
	}
	for i := range behaviors {
		cfg.Pipeline.Receive.Use(fmt.Sprint(i), func(next pipeline.Func[*pipeline.Receive]) pipeline.Func[*pipeline.Receive] {
			return func(ctx context.Context, in *pipeline.Receive) error { return next(ctx, in) }
		})
	}
	e, err := endpoint.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.WaitReady(ctx); err != nil {
		b.Fatal(err)
	}
	ops := benchmarkOperations(b, e, broker)
	conn, err := broker.Open(ctx, transport.Env{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(ops) {
		wg.Add(len(ops))
		if _, err := conn.Dispatch(ctx, ops); err != nil {
			b.Fatal(err)
		}
		wg.Wait()
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// benchmarkOperations are messages for the endpoint, as it would send them itself.
func benchmarkOperations(b *testing.B, e *endpoint.Endpoint, broker *inmemory.Transport) []transport.Operation {
	b.Helper()
	m := order{
		OrderID: "3f2b8c1e-7a54-4c0d-9d3e-1b2c3d4e5f60", CustomerID: "cust-000123", Currency: "EUR", Total: 129.95,
		PlacedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Notes: "leave it at the door",
	}
	broker.CreateQueues("template")
	if err := e.Send(b.Context(), m, endpoint.To("template")); err != nil {
		b.Fatal(err)
	}
	ops := make([]transport.Operation, 100)
	for i := range ops {
		ops[i] = transport.Operation{Message: broker.Messages("template")[0], Queue: "bench"}
	}
	return ops
}
