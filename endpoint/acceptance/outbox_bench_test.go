package acceptance_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/postgres"
)

// BenchmarkOutbox measures the cost of an outbox on PostgreSQL, without that of a broker: each
// message is looked for, handled and stored, and what it sends is relayed.
func BenchmarkOutbox(b *testing.B) {
	for _, concurrency := range []int{1, 32} {
		b.Run(fmt.Sprint("c", concurrency), func(b *testing.B) {
			broker := &inmemory.Transport{}
			var arrived atomic.Int64
			all := make(chan struct{})
			cfg := endpoint.Config{
				Name: "work", Transport: broker, Outbox: &postgres.Transport{URL: brokertest.Postgres(b)}, Concurrency: concurrency, Install: true,
				Messages: []endpoint.Message{endpoint.Command[work]("Kill.Work"), endpoint.Command[worked]("Kill.Worked").To("worked")},
				Logger:   slog.New(slog.DiscardHandler),
				Handlers: []endpoint.Handler{endpoint.Handle(func(ctx context.Context, s *endpoint.Session, m work) error {
					return s.Send(ctx, worked(m))
				})},
			}
			sink := cfg
			sink.Name, sink.Outbox = "worked", nil
			sink.Handlers = []endpoint.Handler{endpoint.Handle(func(context.Context, *endpoint.Session, worked) error {
				if arrived.Add(1) == int64(b.N) {
					close(all)
				}
				return nil
			})}
			broker.CreateQueues("work")
			for n := range b.N {
				m := &transport.Message{ID: fmt.Sprintf("01970000-0000-7000-8000-%012x", n), Body: fmt.Appendf(nil, `{"N":%d}`, n)}
				m.Headers = header.New(header.Field{Name: header.EnclosedMessageTypes, Value: "Kill.Work"}, header.Field{Name: header.MessageID, Value: m.ID})
				if err := broker.Put("work", m); err != nil {
					b.Fatal(err)
				}
			}
			var endpoints []*endpoint.Endpoint
			for _, c := range []endpoint.Config{cfg, sink} {
				e, err := endpoint.New(c)
				if err != nil {
					b.Fatal(err)
				}
				endpoints = append(endpoints, e)
			}
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			done := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { done <- endpoint.RunAll(ctx, endpoints...) }()
			<-all
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
